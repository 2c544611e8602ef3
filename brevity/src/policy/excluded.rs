//! Tensors that ranks don't exchange.

use super::{Kind, Policy};

impl Policy {
    /// Not exchanged: each rank keeps its own gradient, as it was handed in, whatever its values. Nothing is
    /// sent, kept or saved of the tensor. So a frozen layer, or one that each rank trains by itself, stays in
    /// the list of tensors, which rules and models have in common. Ranks must exclude the same tensors: that
    /// is part of the description.
    #[must_use]
    pub const fn excluded() -> Self {
        Self(Kind::Excluded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::policy::{PolicyRules, Resolved};

    #[test]
    fn any_tensor_can_be_excluded() {
        for shape in [&[][..], &[0], &[3, 4], &[1 << 33]] {
            assert_eq!(Policy::excluded().resolve("t", shape).unwrap(), Resolved::Excluded);
        }
        let refused = Policy::excluded().resolve("t", &[usize::MAX, 2]);
        assert!(matches!(refused, Err(Error::TooLarge { .. })), "no gradient has so many elements");
    }

    #[test]
    fn it_survives_its_text() {
        assert_eq!("excluded".parse::<Policy>().unwrap(), Policy::excluded());
        assert_eq!(Policy::excluded().to_string(), "excluded");
        let rules: PolicyRules = "frozen*=excluded;*=dense".parse().unwrap();
        assert_eq!(rules.policy("frozen.weight", &[3]).unwrap(), Policy::excluded());
        assert_eq!(rules.to_string(), "frozen*=excluded;*=dense");
        for (text, expected) in
            [("excluded:1", "excluded without a number"), ("excluded,min=2", "nothing after the method")]
        {
            let error = text.parse::<Policy>().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
