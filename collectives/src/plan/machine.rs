//! The speeds of a network and of its hosts, which algorithms are chosen by.

use std::fmt;
use std::str::FromStr;

use brevity_compress::in_standard_float_mode;

/// The cost of messages between two ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Seconds until an empty message has arrived.
    pub alpha: f64,
    /// Seconds of a processor for each further one of several messages at once.
    pub overhead: f64,
    /// Seconds a byte.
    pub beta: f64,
}

/// The speeds of links and processors, equal on all ranks.
///
/// As text, in `BREVITY_MACHINE`: parts separated by semicolons, each of which may be left out and then has
/// the default. `inside`, `between` and `slots` have three numbers: microseconds a message, microseconds of a
/// processor for each further message, and nanoseconds a byte. `reduce` and `copy` are nanoseconds a byte.
/// `ports:rank` says that each rank has a link of its own to other hosts; otherwise those of a host share
/// one.
///
/// ```
/// use brevity_collectives::Machine;
///
/// let machine: Machine = "between:50,2,8;reduce:0.2".parse()?;
/// assert_eq!((machine.between.alpha, machine.between.beta), (50e-6, 8e-9));
/// assert_eq!(machine.inside, Machine::default().inside);
/// assert_eq!(machine.to_string().parse::<Machine>()?, machine);
/// assert!("between:50".parse::<Machine>().is_err());
/// # Ok::<(), brevity_collectives::UnknownMachine>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Messages between ranks of one host.
    pub inside: Link,
    /// Messages between ranks of different hosts.
    pub between: Link,
    /// What a rank of the same host has published in shared memory: seconds to see it, and a byte to read it.
    pub slots: Link,
    /// Seconds to combine a byte with another.
    pub reduce: f64,
    /// Seconds to copy a byte.
    pub copy: f64,
    /// Whether each rank has a link of its own to other hosts. Otherwise the ranks of a host share one.
    pub has_own_ports: bool,
}

/// Roughly sockets and processors of one host, since nothing is known of others.
impl Default for Machine {
    fn default() -> Self {
        let link = Link { alpha: 20e-6, overhead: 2.5e-6, beta: 0.5e-9 };
        Self {
            inside: link,
            between: link,
            slots: Link { alpha: 0.125e-6, overhead: 0.0, beta: 0.125e-9 },
            reduce: 0.1e-9,
            copy: 0.1e-9,
            has_own_ports: false,
        }
    }
}

/// Text that is no [`Machine`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is no part of a machine: expected {expected}")]
pub struct UnknownMachine {
    /// The part.
    pub found: String,
    /// What would do.
    pub expected: &'static str,
}

const PARTS: &str = "inside, between, slots, reduce, copy or ports, a colon and values, as between:50,2,8";
const LINK: &str = "microseconds a message, microseconds for a further one, nanoseconds a byte, as 50,2,8";
const SPEED: &str = "nanoseconds a byte, as 0.1";
const PORTS: &str = "ports:rank or ports:host";

/// The largest number of an encoded machine: seconds.
const MOST_SECONDS: f64 = 1e6;

impl Machine {
    /// Bytes of an encoded machine.
    pub(crate) const BYTES: usize = 12 * 8;

    /// A network where all links are equal and computing takes no time, as the
    /// [simulated](ucx_sys_wrap::sim) one: `alpha` seconds a message, `beta` seconds a byte.
    #[must_use]
    pub const fn uniform(alpha: f64, beta: f64) -> Self {
        let link = Link { alpha, overhead: 0.0, beta };
        let slots = Link { alpha: 0.125e-6, overhead: 0.0, beta: 0.125e-9 };
        Self { inside: link, between: link, slots, reduce: 0.0, copy: 0.0, has_own_ports: true }
    }

    fn numbers(&self) -> [f64; 12] {
        let Self { inside, between, slots, reduce, copy, has_own_ports } = *self;
        let ports = if has_own_ports { 1.0 } else { 0.0 };
        let of = |link: Link| [link.alpha, link.overhead, link.beta];
        let [[a, b, c], [d, e, f], [g, h, i]] = [inside, between, slots].map(of);
        [a, b, c, d, e, f, g, h, i, reduce, copy, ports]
    }

    /// `None` if a number is negative, too large or none.
    fn of_numbers(numbers: [f64; 12]) -> Option<Self> {
        let [a, b, c, d, e, f, g, h, i, reduce, copy, ports] = numbers;
        let link = |alpha, overhead, beta| Link { alpha, overhead, beta };
        let is_valid =
            numbers.iter().all(|number| (0.0..=MOST_SECONDS).contains(number)) && [0.0, 1.0].contains(&ports);
        is_valid.then_some(Self {
            inside: link(a, b, c),
            between: link(d, e, f),
            slots: link(g, h, i),
            reduce,
            copy,
            has_own_ports: ports > 0.0,
        })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        self.numbers().iter().flat_map(|number| number.to_bits().to_le_bytes()).collect()
    }

    /// `None` for bytes that [`encode`](Self::encode) does not make.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<8>();
        let words: [[u8; 8]; 12] = words.try_into().ok().filter(|_| rest.is_empty())?;
        Self::of_numbers(words.map(|word| f64::from_bits(u64::from_le_bytes(word))))
    }

    /// Whether all numbers are from 0 on and finite.
    pub(crate) fn is_valid(&self) -> bool {
        Self::of_numbers(self.numbers()).is_some()
    }
}

impl FromStr for Machine {
    type Err = UnknownMachine;

    fn from_str(text: &str) -> Result<Self, UnknownMachine> {
        let mut machine = Self::default();
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            let wrong = |expected| UnknownMachine { found: part.to_owned(), expected };
            let (name, values) = part.split_once(':').ok_or_else(|| wrong(PARTS))?;
            let link = || read_link(values).ok_or_else(|| wrong(LINK));
            let speed = || number(values, 1e-9).ok_or_else(|| wrong(SPEED));
            match name.trim() {
                "inside" => machine.inside = link()?,
                "between" => machine.between = link()?,
                "slots" => machine.slots = link()?,
                "reduce" => machine.reduce = speed()?,
                "copy" => machine.copy = speed()?,
                "ports" => {
                    machine.has_own_ports = match values.trim() {
                        "rank" => true,
                        "host" => false,
                        _ => return Err(wrong(PORTS)),
                    }
                }
                _ => return Err(wrong(PARTS)),
            }
        }
        Ok(machine)
    }
}

fn read_link(values: &str) -> Option<Link> {
    let mut values = values.split(',');
    let (alpha, overhead) = (number(values.next()?, 1e-6)?, number(values.next()?, 1e-6)?);
    let beta = number(values.next()?, 1e-9)?;
    values.next().is_none().then_some(Link { alpha, overhead, beta })
}

/// A number of so many seconds each.
fn number(text: &str, unit: f64) -> Option<f64> {
    let number: f64 = text.trim().parse().ok()?;
    // Division by the whole number of units in a second rounds once: 20 us are 20e-6.
    let seconds = in_standard_float_mode(|| number / (1.0 / unit).round());
    Some(seconds).filter(|seconds| (0.0..=MOST_SECONDS).contains(seconds))
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, link) in [("inside", self.inside), ("between", self.between), ("slots", self.slots)] {
            let [alpha, overhead] = [link.alpha, link.overhead].map(|time| in_units(time, 1e6));
            write!(f, "{name}:{alpha},{overhead},{};", in_units(link.beta, 1e9))?;
        }
        let [reduce, copy] = [self.reduce, self.copy].map(|time| in_units(time, 1e9));
        write!(f, "reduce:{reduce};copy:{copy};ports:{}", if self.has_own_ports { "rank" } else { "host" })
    }
}

/// A time in units, as short as it can be read back.
fn in_units(seconds: f64, units: f64) -> f64 {
    let exact = seconds * units;
    let short = (exact * 1e6).round() / 1e6;
    if short / units == seconds { short } else { exact }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_read_and_told() {
        let text = "inside:1,0.25,0.1;between:50.5,2,8;slots:0.1,0,0.12;reduce:0.2;copy:0.05;ports:rank";
        let machine: Machine = text.parse().unwrap();
        assert_eq!(machine.to_string(), text);
        assert_eq!(machine.between, Link { alpha: 50.5e-6, overhead: 2e-6, beta: 8e-9 });
        assert!(machine.has_own_ports);
        assert_eq!(" reduce : 0.1 ; ".parse::<Machine>().unwrap(), Machine::default());
        assert_eq!(Machine::default().to_string().parse::<Machine>().unwrap(), Machine::default());
        for (text, expected) in [
            ("between", "a colon"),
            ("links:1,1,1", "inside, between"),
            ("between:1,1", "microseconds"),
            ("between:1,1,1,1", "microseconds"),
            ("between:1,1,-1", "microseconds"),
            ("between:1,1,inf", "microseconds"),
            ("reduce:NaN", "nanoseconds a byte"),
            ("ports:2", "ports:rank"),
        ] {
            let message = text.parse::<Machine>().unwrap_err().to_string();
            assert!(message.contains(expected), "{text}: {message}");
        }
    }

    #[test]
    fn machines_travel_as_bytes() {
        let machine = Machine { has_own_ports: true, reduce: 7e-9, ..Machine::default() };
        let bytes = machine.encode();
        assert_eq!((bytes.len(), Machine::decode(&bytes)), (Machine::BYTES, Some(machine)));
        assert_eq!(Machine::decode(&bytes[1..]), None);
        assert_eq!(Machine::decode(&[]), None);
        for number in [f64::NAN, -1.0, f64::INFINITY] {
            let wrong = Machine { copy: number, ..machine };
            assert!(Machine::decode(&wrong.encode()).is_none() && !wrong.is_valid());
        }
    }
}
