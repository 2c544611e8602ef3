//! The fixed order of reductions.
//!
//! With `P` operands `x`, `m` the largest power of two up to `P`, and `g = P - m`:
//!
//! - `y(i) = x(i) + x(i + m)` for `i < g`, else `y(i) = x(i)`; `0 <= i < m`;
//! - `S(i, 1) = y(i)` and `S(i, 2 v) = S(i, v) + S(i + v, v)`, for `i` a multiple of `2 v`;
//! - the result is `S(0, m)`.
//!
//! Here `+` is any reduction that commutes. Nothing depends on where a vector is cut, so all algorithms that
//! keep this order give the same bits.
//!
//! [`order`] is a program for a stack that computes `S(0, m)`. It visits the leaves `y(0 xor v)`,
//! `y(1 xor v)`, .., `y((m - 1) xor v)`. Xor by a constant maps each aligned block of `2^j` leaves onto such
//! a block, so that every `v` computes the same sums, up to the sides of each `+`. After leaf `i` the stack
//! holds the sums of the aligned blocks that the binary digits of `i + 1` stand for. `v` is chosen so that
//! the rank's own operand comes first: the bottom of the stack can be the memory where it lies.

use std::iter::{once, repeat_n};

/// A step of the program that [`order`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderStep {
    /// The operand of this rank is pushed.
    Push(u32),
    /// The operand of this rank is added to the top.
    Add(u32),
    /// The top is popped and added to the one below.
    Merge,
}

/// The program that reduces the operands of `ranks` ranks in the fixed order; its stack holds the result at
/// the end. The first step is `Push(own)`, and `own` is in no other step.
///
/// # Panics
/// When there are no ranks, or `own` is not one of them.
#[inline]
pub fn order(ranks: u32, own: u32) -> impl Iterator<Item = OrderStep> + Clone {
    assert!(own < ranks, "rank {own} of {ranks}");
    let members = 1 << ranks.ilog2();
    let guests = ranks - members;
    let first = if own < members { own } else { own - members };
    (0..members).flat_map(move |index| {
        let member = index ^ first;
        let guest = (member < guests).then_some(member + members);
        let (left, right) = if index == 0 && own >= members { (own, Some(member)) } else { (member, guest) };
        let merges = index.trailing_ones();
        // A leaf of one operand that would be merged next is added at once.
        let is_added = merges > 0 && right.is_none();
        let left = if is_added { OrderStep::Add(left) } else { OrderStep::Push(left) };
        let merges = repeat_n(OrderStep::Merge, merges as usize - usize::from(is_added));
        once(left).chain(right.map(OrderStep::Add)).chain(merges)
    })
}

/// The most entries of the stack on which [`order`] runs, for any rank of `ranks`.
///
/// # Panics
/// When there are no ranks.
#[inline]
#[must_use]
pub const fn order_depth(ranks: u32) -> usize {
    let depth = ranks.ilog2() as usize + !ranks.is_power_of_two() as usize;
    if depth == 0 { 1 } else { depth }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, with an operation that commutes and is not associative.
    fn defined(operands: &[u64], plus: fn(u64, u64) -> u64) -> u64 {
        fn sum(leaves: &[u64], plus: fn(u64, u64) -> u64) -> u64 {
            let (left, right) = leaves.split_at(leaves.len() / 2);
            if left.is_empty() { right[0] } else { plus(sum(left, plus), sum(right, plus)) }
        }
        let members = 1 << operands.len().ilog2();
        let leaf = |index: usize| match operands.get(index + members) {
            Some(guest) => plus(operands[index], *guest),
            None => operands[index],
        };
        sum(&(0..members).map(leaf).collect::<Vec<_>>(), plus)
    }

    fn plus(a: u64, b: u64) -> u64 {
        (a ^ b).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ a.wrapping_add(b)
    }

    #[test]
    fn every_rank_computes_the_definition() {
        for ranks in 1..=33 {
            let operands: Vec<u64> = (0..u64::from(ranks)).map(|rank| rank * rank + 3).collect();
            let expected = defined(&operands, plus);
            let mut deepest = 0;
            for own in 0..ranks {
                let mut stack = Vec::new();
                for step in order(ranks, own) {
                    match step {
                        OrderStep::Push(rank) => stack.push(operands[rank as usize]),
                        OrderStep::Add(rank) => {
                            let top = stack.pop().unwrap();
                            stack.push(plus(top, operands[rank as usize]));
                        }
                        OrderStep::Merge => {
                            let (top, below) = (stack.pop().unwrap(), stack.pop().unwrap());
                            stack.push(plus(below, top));
                        }
                    }
                    deepest = deepest.max(stack.len());
                }
                assert_eq!(stack, [expected], "{own} of {ranks}");
            }
            assert_eq!(deepest, order_depth(ranks), "{ranks} ranks");
        }
    }

    #[test]
    fn a_program_begins_with_the_own_operand_and_uses_each_once() {
        for ranks in 1..=33 {
            for own in 0..ranks {
                assert_eq!(order(ranks, own).next(), Some(OrderStep::Push(own)));
                let mut used: Vec<u32> = order(ranks, own)
                    .filter_map(|step| match step {
                        OrderStep::Push(rank) | OrderStep::Add(rank) => Some(rank),
                        OrderStep::Merge => None,
                    })
                    .collect();
                used.sort_unstable();
                assert!(used.into_iter().eq(0..ranks), "{own} of {ranks}");
            }
        }
        assert!(order(2, 1).eq([OrderStep::Push(1), OrderStep::Add(0)]), "two ranks need no scratch");
    }
}
