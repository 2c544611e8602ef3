//! Policies of a model's tensors by their names and shapes.

use std::fmt;
use std::str::FromStr;

use super::{Policy, elements};
use crate::error::{Error, Result};

/// Policies by name and shape: the first rule whose conditions a tensor meets decides.
///
/// As text, rules are separated by semicolons; each is conditions, `=`, and a [policy](Policy). Conditions
/// are joined by `&`: a name, where `*` stands for any characters and `?` for one; `dims<N` and `dims>N`, of
/// the number of dimensions; `size<N` and `size>N`, of the number of elements. Spaces around all of them are
/// left out.
///
/// ```
/// use brevity::{GradientExchange, Group, Policy, PolicyRules};
///
/// let rules: PolicyRules = "dims<2=dense; embed*&size>1000=gtopk:0.001; *=low-rank:4".parse()?;
/// assert_eq!(rules.policy("embedding", &[50, 512])?, Policy::gtopk(0.001));
/// let mut builder = GradientExchange::builder(&Group::solo());
/// for (name, shape) in [("embedding", vec![50, 512]), ("bias", vec![512])] {
///     builder = builder.tensor(name, &shape, rules.policy(name, &shape)?);
/// }
/// # builder.build()?;
/// # Ok::<(), brevity::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyRules(Vec<(Vec<Condition>, Policy)>);

/// What a tensor must be like.
#[derive(Clone, Debug, PartialEq)]
enum Condition {
    Name(String),
    FewerDimensions(usize),
    MoreDimensions(usize),
    Smaller(usize),
    Larger(usize),
}

impl PolicyRules {
    /// Without a rule.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more rule, behind the others: `conditions` as in the text.
    ///
    /// # Errors
    /// [`Error::PolicyText`].
    pub fn rule(mut self, conditions: &str, policy: Policy) -> Result<Self> {
        self.0.push((read_conditions(conditions)?, policy));
        Ok(self)
    }

    /// The policy of a tensor of this name and shape.
    ///
    /// # Errors
    /// [`Error::NoRule`]; [`Error::TooLarge`] for more elements than memory can address.
    pub fn policy(&self, name: &str, shape: &[usize]) -> Result<Policy> {
        let count = elements(name, shape)?;
        let meets = |conditions: &[Condition]| {
            conditions.iter().all(|condition| condition.is_met(name, shape.len(), count))
        };
        let rule = self.0.iter().find(|(conditions, _)| meets(conditions));
        rule.map(|(_, policy)| *policy).ok_or_else(|| Error::NoRule { tensor: name.to_owned() })
    }
}

impl Condition {
    fn is_met(&self, name: &str, dimensions: usize, elements: usize) -> bool {
        match self {
            Self::Name(pattern) => is_like(name, pattern),
            Self::FewerDimensions(limit) => dimensions < *limit,
            Self::MoreDimensions(limit) => dimensions > *limit,
            Self::Smaller(limit) => elements < *limit,
            Self::Larger(limit) => elements > *limit,
        }
    }
}

/// Whether a name is what a pattern with `*` and `?` describes. Takes time in proportion to the product of
/// their lengths at most.
fn is_like(name: &str, pattern: &str) -> bool {
    let (name, pattern): (Vec<char>, Vec<char>) = (name.chars().collect(), pattern.chars().collect());
    // Where to go on if the last star is to stand for one character more.
    let mut retry: Option<(usize, usize)> = None;
    let (mut at, mut of) = (0, 0);
    while at < name.len() {
        match pattern.get(of) {
            Some('*') => {
                retry = Some((at, of + 1));
                of += 1;
            }
            Some(&wanted) if wanted == '?' || wanted == name[at] => (at, of) = (at + 1, of + 1),
            _ => match retry {
                Some((from, after)) => {
                    retry = Some((from + 1, after));
                    (at, of) = (from + 1, after);
                }
                None => return false,
            },
        }
    }
    pattern[of..].iter().all(|&left| left == '*')
}

fn read_conditions(text: &str) -> Result<Vec<Condition>> {
    text.split('&').map(|condition| read_condition(condition.trim())).collect()
}

fn read_condition(text: &str) -> Result<Condition> {
    let refused = |expected: &str| Error::PolicyText { text: text.to_owned(), expected: expected.to_owned() };
    let comparison = |name: &str| {
        let rest = text.strip_prefix(name)?;
        let is_less = rest.starts_with('<');
        let limit = rest.strip_prefix(['<', '>'])?.trim();
        Some(limit.parse::<usize>().map(|limit| (is_less, limit)))
    };
    for (name, fewer, more) in [
        (
            "dims",
            Condition::FewerDimensions as fn(usize) -> Condition,
            Condition::MoreDimensions as fn(_) -> _,
        ),
        ("size", Condition::Smaller, Condition::Larger),
    ] {
        if let Some(found) = comparison(name) {
            let (is_less, limit) =
                found.map_err(|_| refused("a whole number after < or >, as in dims<2 or size>1000"))?;
            return Ok(if is_less { fewer(limit) } else { more(limit) });
        }
    }
    if text.is_empty() || text.contains(['<', '>', ';', '=']) {
        return Err(refused(
            "a name, where * and ? stand for any characters, dims<N, dims>N, size<N or size>N",
        ));
    }
    Ok(Condition::Name(text.to_owned()))
}

impl FromStr for PolicyRules {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        text.split(';').try_fold(Self::new(), |rules, rule| {
            let (conditions, policy) = rule.split_once('=').ok_or_else(|| Error::PolicyText {
                text: rule.trim().to_owned(),
                expected: "CONDITIONS=POLICY, as in dims<2=dense".into(),
            })?;
            rules.rule(conditions, policy.trim().parse()?)
        })
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(pattern) => f.write_str(pattern),
            Self::FewerDimensions(limit) => write!(f, "dims<{limit}"),
            Self::MoreDimensions(limit) => write!(f, "dims>{limit}"),
            Self::Smaller(limit) => write!(f, "size<{limit}"),
            Self::Larger(limit) => write!(f, "size>{limit}"),
        }
    }
}

impl fmt::Display for PolicyRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (conditions, policy)) in self.0.iter().enumerate() {
            f.write_str(if place == 0 { "" } else { ";" })?;
            for (place, condition) in conditions.iter().enumerate() {
                write!(f, "{}{condition}", if place == 0 { "" } else { "&" })?;
            }
            write!(f, "={policy}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use brevity_compress::quantise::Values;

    use super::*;

    #[test]
    fn stars_and_question_marks_stand_for_characters() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*", "any", true),
            ("?", "", false),
            ("a*b*c", "a--b--b-c", true),
            ("a*b*c", "a--b--b-", false),
            ("*.bias", "layer.3.bias", true),
            ("*.bias", "layer.3.bias.old", false),
            ("layer.?.weight", "layer.3.weight", true),
            ("layer.?.weight", "layer.33.weight", false),
            ("**a", "bca", true),
            ("größe?", "größen", true),
            ("exact", "exactly", false),
        ] {
            assert_eq!(is_like(name, pattern), expected, "{pattern} {name}");
        }
        // Time in proportion to the product of the lengths, not to a power.
        assert!(!is_like(&"a".repeat(10_000), &("*a".repeat(100) + "b")));
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let text = "dims<2=dense;size<1000=dense;embed*&dims>1=gtopk:0.001;*.gate=signum:0.9;\
                    *.up=quantised:bf16;size>1000000=topk:0.5;*=low-rank:4";
        let rules: PolicyRules = text.parse().unwrap();
        assert_eq!(rules.to_string(), text);
        let policy = |name, shape: &[usize]| rules.policy(name, shape).unwrap();
        assert_eq!(policy("embed.bias", &[5000]), Policy::dense());
        assert_eq!(policy("embedding", &[10, 10]), Policy::dense());
        assert_eq!(policy("embedding", &[100, 10]), Policy::gtopk(0.001));
        assert_eq!(policy("weight", &[1000, 1001]), Policy::topk(0.5));
        assert_eq!(policy("mlp.gate", &[1000, 10]), Policy::signum(0.9));
        assert_eq!(policy("mlp.up", &[1000, 10]), Policy::quantised(Values::Bf16));
        assert_eq!(policy("weight", &[1000, 1000]), Policy::low_rank(4));
    }

    #[test]
    fn a_tensor_without_a_rule_is_named() {
        let rules: PolicyRules = "a*=dense".parse().unwrap();
        let error = rules.policy("bias", &[3]).unwrap_err().to_string();
        assert!(error.contains("\"bias\"") && error.contains("*=dense"), "{error}");
        assert!(matches!(rules.policy("a", &[usize::MAX, 2]), Err(Error::TooLarge { .. })));
    }

    #[test]
    fn what_is_no_rule_is_refused_with_what_is_expected() {
        for (text, part) in [
            ("", "CONDITIONS=POLICY"),
            ("dense", "CONDITIONS=POLICY"),
            ("*=dense;", "CONDITIONS=POLICY"),
            ("=dense", "a name"),
            ("a&=dense", "a name"),
            ("dims<=dense", "a whole number"),
            ("size>-1=dense", "a whole number"),
            ("rank<2=dense", "a name"),
            ("*=zip", "dense, excluded, auto"),
            ("*=gtopk:2", "a density above 0"),
        ] {
            let error = text.parse::<PolicyRules>().unwrap_err().to_string();
            assert!(error.contains("expected") && error.contains(part), "{text}: {error}");
        }
        assert!(PolicyRules::new().rule("a;b", Policy::dense()).is_err(), "its text would be two rules");
    }
}
