//! The columns of a tensor, for formats of values that have a scale for each.

/// The columns of a tensor as a matrix: all dimensions but the first. A vector is one column.
pub(super) fn columns(shape: &[usize], count: usize) -> u32 {
    let columns = if shape.len() > 1 { count.checked_div(shape[0]).unwrap_or(1) } else { 1 };
    u32::try_from(columns).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use brevity_compress::quantise::Values;

    use crate::policy::{Policy, Resolved};

    #[test]
    fn columns_are_those_of_the_tensor_unless_given() {
        let resolved = |columns, shape: &[usize]| {
            let values = Values::OneBitColumns(columns);
            let quantised = match Policy::quantised(values).resolve("t", shape).unwrap() {
                Resolved::Quantised { values } => values,
                other => panic!("{other:?}"),
            };
            let sparse = Policy::topk(0.5).values(values).resolve("t", shape).unwrap();
            assert_eq!(sparse, Policy::topk(0.5).values(quantised).resolve("t", shape).unwrap());
            quantised
        };
        let shapes = [(&[][..], 1), (&[9], 1), (&[4, 9], 9), (&[4, 3, 2], 6), (&[0, 9], 1), (&[4, 0], 1)];
        for (shape, expected) in shapes {
            assert_eq!(resolved(0, shape), Values::OneBitColumns(expected), "{shape:?}");
            assert_eq!(resolved(5, shape), Values::OneBitColumns(5), "{shape:?}");
        }
    }
}
