//! The options of one call.

use std::borrow::Cow;
use std::ffi::{CStr, c_char};
use std::time::Duration;

use brevity::{Averaging, GradientElement, GradientExchange, Group};
use brevity_collectives::{Algorithm, Error as Refused, Operation};

use crate::boundary::{check, guard};
use crate::callback::check_may_wait;
use crate::element::OfGradients;
use crate::failure::Failure;
use crate::lent::Lent;
use crate::status::brv_status;

/// The most bytes of a name.
const MAX_NAME_BYTES: usize = 255;

/// The algorithms by their numbers in C, from 1.
const ALGORITHMS: [Algorithm; 14] = [
    Algorithm::Dissemination,
    Algorithm::Binomial,
    Algorithm::Knomial4,
    Algorithm::Knomial8,
    Algorithm::Ring,
    Algorithm::Doubling,
    Algorithm::Halving,
    Algorithm::Direct,
    Algorithm::Bruck,
    Algorithm::Pairwise,
    Algorithm::Linear,
    Algorithm::Spread,
    Algorithm::Hosts,
    Algorithm::Slots,
];

/// The name in C of an algorithm's number.
#[doc(hidden)]
#[must_use]
pub fn algorithm_name(number: u32) -> Option<&'static str> {
    let index = (number as usize).checked_sub(1)?;
    ALGORITHMS.get(index).map(|algorithm| algorithm.name())
}

/// What one call does differently, as in C.
#[repr(C)]
pub struct brv_options {
    size: u32,
    algorithm: u32,
    timeout: f64,
    name: *const c_char,
    reserved: [u64; 5],
}

/// The same, checked; without any, what a call does by default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    timeout: Option<Duration>,
    name: Option<String>,
    algorithm: Option<Algorithm>,
}

impl Options {
    /// Reads the options of a call that has no choice of algorithms; NULL is none.
    ///
    /// # Safety
    /// As for [`read_dense`](Self::read_dense).
    pub(crate) unsafe fn read(options: *const brv_options) -> Result<Self, Failure> {
        // SAFETY: the caller of this function guarantees the same.
        let read = unsafe { Self::read_dense(options) }?;
        match read.algorithm {
            Some(algorithm) => Err(Failure::argument(format!(
                "options.algorithm is for {algorithm}, expected 0: only dense collectives and \
                 brv_topk_all_reduce have a choice"
            ))),
            None => Ok(read),
        }
    }

    /// Reads the options of a dense collective; NULL is none.
    ///
    /// # Safety
    /// `options` is NULL, or points to at least 4 bytes that hold its size. If that is the size of
    /// [`brv_options`], the whole struct may be read, and its name is NULL or a string.
    #[inline]
    pub(crate) unsafe fn read_dense(options: *const brv_options) -> Result<Self, Failure> {
        if options.is_null() {
            return Ok(Self::default());
        }
        check(options, "options")?;
        // SAFETY: not NULL and aligned; the caller of this function guarantees 4 bytes.
        let size = unsafe { (&raw const (*options).size).read() };
        if size as usize != size_of::<brv_options>() {
            let expected = size_of::<brv_options>();
            return Err(Failure::argument(format!(
                "options.size is {size}, expected {expected}: begin with BRV_OPTIONS_INIT"
            )));
        }
        // SAFETY: it has the size of these options, so the caller of this function guarantees all of it.
        let options = unsafe { &*options };
        if options.reserved != [0; 5] {
            return Err(Failure::argument(
                "a reserved field of options is set, expected 0: begin with BRV_OPTIONS_INIT",
            ));
        }
        let algorithm = match options.algorithm.checked_sub(1).map(|index| index as usize) {
            None => None,
            Some(index) => Some(*ALGORITHMS.get(index).ok_or_else(|| {
                let (found, last) = (options.algorithm, ALGORITHMS.len());
                Failure::argument(format!(
                    "options.algorithm is {found}, expected a brv_algorithm (0 to {last})"
                ))
            })?),
        };
        let name = if options.name.is_null() {
            None
        } else {
            // SAFETY: the caller of this function guarantees a string.
            let name = unsafe { CStr::from_ptr(options.name) };
            let name = name.to_str().ok().filter(|name| name.len() <= MAX_NAME_BYTES);
            let wrong = || format!("options.name is no UTF-8 of at most {MAX_NAME_BYTES} bytes");
            Some(name.ok_or_else(|| Failure::argument(wrong()))?.to_owned())
        };
        Ok(Self { timeout: timeout(options.timeout, "options.timeout")?, name, algorithm })
    }

    /// The timeout of the call, if it has one.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// The group, with the timeout and the algorithm of the call.
    #[inline]
    pub(crate) fn on<'a>(&self, group: &'a Group) -> Cow<'a, Group> {
        let group = match self.timeout {
            Some(timeout) => Cow::Owned(group.with_timeout(timeout)),
            None => Cow::Borrowed(group),
        };
        match self.algorithm {
            Some(_) => Cow::Owned(group.with_algorithm(self.algorithm)),
            None => group,
        }
    }

    /// Refuses an algorithm that a barrier has not.
    pub(crate) fn check_algorithm_of_barrier(&self) -> Result<(), Failure> {
        match self.algorithm {
            None | Some(Algorithm::Dissemination | Algorithm::Hosts) => Ok(()),
            Some(algorithm) => {
                let (operation, fitting) = (Operation::BARRIER, Algorithm::Dissemination.to_string());
                Err(Refused::Algorithm { operation, algorithm, fitting }.into())
            }
        }
    }

    /// Averages with the timeout of the call.
    pub(crate) fn average<E: GradientElement>(
        &self,
        exchange: &mut GradientExchange,
        gradients: &mut [&mut [E]],
    ) -> Result<(), Failure> {
        let averaged = match self.timeout {
            Some(timeout) => exchange.average_within::<E, _>(gradients, timeout),
            None => exchange.average::<E, _>(gradients),
        };
        Ok(averaged?)
    }

    /// Starts an average with an exchange, with the timeout of the call.
    pub(crate) fn start<E: OfGradients>(
        &self,
        exchange: GradientExchange,
        gradients: Vec<Lent<E>>,
    ) -> Averaging<Lent<E>> {
        match self.timeout {
            Some(timeout) => exchange.start_within::<E, _>(gradients, timeout),
            None => exchange.start::<E, _>(gradients),
        }
    }

    /// Names the call in the text of its failure.
    pub(crate) fn explain(&self, failure: impl Into<Failure>) -> Failure {
        match &self.name {
            Some(name) => failure.into().about(name),
            None => failure.into(),
        }
    }
}

/// A timeout in seconds; `None` for 0. Infinity is no limit.
pub(crate) fn timeout(seconds: f64, field: &str) -> Result<Option<Duration>, Failure> {
    if seconds == 0.0 {
        return Ok(None);
    }
    if seconds == f64::INFINITY {
        return Ok(Some(Duration::MAX));
    }
    let timeout = Duration::try_from_secs_f64(seconds).ok().filter(|timeout| !timeout.is_zero());
    timeout.map(Some).ok_or_else(|| {
        Failure::argument(format!(
            "{field} is {seconds:?}, expected seconds above 0 and below 1e19, as 30 or 0.5, or INFINITY"
        ))
    })
}

/// Runs a call that waits, with its options.
///
/// # Safety
/// As for [`Options::read`].
pub(crate) unsafe fn with_options<T>(
    options: *const brv_options,
    body: impl FnOnce(&Options) -> Result<T, Failure>,
) -> Result<T, Failure> {
    check_may_wait()?;
    // SAFETY: the caller of this function guarantees what `read` demands.
    let options = unsafe { Options::read(options) }?;
    body(&options).map_err(|failure| options.explain(failure))
}

/// Like [`with_options`], for a call that gives nothing but its status.
///
/// # Safety
/// As for [`Options::read`].
pub(crate) unsafe fn waiting_call(
    options: *const brv_options,
    body: impl FnOnce(&Options) -> Result<(), Failure>,
) -> brv_status {
    // SAFETY: the caller of this function guarantees what `with_options` demands.
    guard(|| unsafe { with_options(options, body) })
}

/// Like [`waiting_call`], for a dense collective.
///
/// # Safety
/// As for [`Options::read`].
#[inline]
pub(crate) unsafe fn waiting_dense_call(
    options: *const brv_options,
    body: impl FnOnce(&Options) -> Result<(), Failure>,
) -> brv_status {
    guard(|| {
        check_may_wait()?;
        // SAFETY: the caller of this function guarantees what `read_dense` demands.
        let options = unsafe { Options::read_dense(options) }?;
        body(&options).map_err(|failure| options.explain(failure))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> brv_options {
        let size = size_of::<brv_options>() as u32;
        brv_options { size, algorithm: 0, timeout: 0.0, name: std::ptr::null(), reserved: [0; 5] }
    }

    fn read(options: &brv_options) -> Result<Options, String> {
        // SAFETY: the options are live, and their name is NULL or a literal.
        unsafe { Options::read(options) }.map_err(|failure| failure.text().to_owned())
    }

    #[test]
    fn options_are_64_bytes_and_begin_as_none() {
        assert_eq!(size_of::<brv_options>(), 64);
        let read = read(&options()).unwrap();
        assert_eq!((read.timeout, read.name, read.algorithm), (None, None, None));
    }

    #[test]
    fn wrong_options_are_refused_with_the_remedy() {
        let with = |change: fn(&mut brv_options)| {
            let mut options = options();
            change(&mut options);
            read(&options).map(|options| options.timeout)
        };
        assert!(with(|options| options.size = 63).unwrap_err().contains("BRV_OPTIONS_INIT"));
        assert!(with(|options| options.algorithm = 1).unwrap_err().contains("only dense collectives"));
        assert!(with(|options| options.algorithm = 15).unwrap_err().contains("(0 to 14)"));
        assert!(with(|options| options.reserved[4] = 1).is_err());
        assert!(with(|options| options.name = c"\xff".as_ptr()).is_err());
        for seconds in [-1.0, f64::NAN, f64::NEG_INFINITY, 1e300, 1e-300] {
            let mut options = options();
            options.timeout = seconds;
            assert!(read(&options).unwrap_err().contains("options.timeout"), "{seconds}");
        }
        assert_eq!(with(|options| options.timeout = 0.5), Ok(Some(Duration::from_millis(500))));
        assert_eq!(with(|options| options.timeout = f64::INFINITY), Ok(Some(Duration::MAX)));
    }

    #[test]
    fn every_algorithm_has_a_number_that_dense_collectives_take() {
        for algorithm in Algorithm::ALL {
            let index = ALGORITHMS.iter().position(|known| *known == algorithm).unwrap();
            let options = brv_options { algorithm: index as u32 + 1, ..options() };
            // SAFETY: the options are live, and their name is NULL.
            assert_eq!(unsafe { Options::read_dense(&options) }.unwrap().algorithm, Some(algorithm));
            assert_eq!(algorithm_name(options.algorithm), Some(algorithm.name()));
        }
        assert_eq!((algorithm_name(0), algorithm_name(15)), (None, None));
    }
}
