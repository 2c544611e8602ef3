//! The fixed order of sums.
//!
//! `P` ranks have the operands `x_0` to `x_(P-1)`. `m` is the largest power of two that is not above `P`, and
//! `g = P - m`. Ranks from `m` on are *guests*: `y_i = x_i op x_(i+m)` for `i < g`, and `y_i = x_i` for
//! other `i < m`. `S(i, 1) = y_i` and `S(i, 2v) = S(i, v) op S(i + v, v)`; the result is `S(0, m)`.
//!
//! Someone who has all operands computes it with a stack. Leaf `i` is pushed, its guest is added, and then
//! blocks of equal size are merged: as many as `i` has trailing ones. After that the stack holds aligned
//! blocks, by the binary digits of `i + 1`, so its depth is at most `log2 m + 1`.
//!
//! Leaves may be visited as `i ^ v` for any constant `v`: that maps aligned blocks to aligned blocks, so only
//! the sides of operations change, and operations commute. A rank chooses the `v` that makes its own operand
//! the first leaf, which can then stay where it is; and ranks begin with different operands of their peers.

/// A step of the program for a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderStep {
    /// Pushes the operand of a rank.
    Push(u32),
    /// Combines the top with the operand of a rank, a guest.
    Add(u32),
    /// Combines the top into the entry below it, and removes the top.
    Merge,
}

/// The program that computes the fixed order of `ranks` operands on a stack. The first leaf is that of `own`.
///
/// If `own` is a guest, its leaf is the pair of its keeper and itself: `Push(own - m)`, `Add(own)`. Every
/// operand occurs once. Without ranks, or if there is no rank `own`, the program is not specified.
#[must_use]
pub fn order(ranks: u32, own: u32) -> Order {
    let members = members(ranks);
    Order {
        members,
        guests: ranks.max(1) - members,
        flip: own & (members - 1),
        leaf: 0,
        is_added: false,
        merges: 0,
    }
}

/// The largest number of entries that the stack has.
#[must_use]
pub const fn order_depth(ranks: u32) -> usize {
    members(ranks).trailing_zeros() as usize + 1
}

/// The largest power of two that is not above `ranks`; 1 without ranks.
const fn members(ranks: u32) -> u32 {
    1 << (ranks | 1).ilog2()
}

/// The steps of a program, made by [`order`].
#[derive(Clone, Debug)]
pub struct Order {
    members: u32,
    guests: u32,
    /// Leaf `i` is the operand of rank `i ^ flip`.
    flip: u32,
    /// The next leaf to push.
    leaf: u32,
    /// Whether the guest of the last leaf has been added, or there is none.
    is_added: bool,
    /// Merges that are still to be made before the next leaf.
    merges: u32,
}

impl Iterator for Order {
    type Item = OrderStep;

    #[inline]
    fn next(&mut self) -> Option<OrderStep> {
        if self.leaf > 0 && !self.is_added {
            self.is_added = true;
            let last = (self.leaf - 1) ^ self.flip;
            if last < self.guests {
                return Some(OrderStep::Add(last + self.members));
            }
        }
        if self.merges > 0 {
            self.merges -= 1;
            return Some(OrderStep::Merge);
        }
        if self.leaf == self.members {
            return None;
        }
        let leaf = self.leaf;
        self.leaf += 1;
        self.is_added = false;
        self.merges = leaf.trailing_ones();
        Some(OrderStep::Push(leaf ^ self.flip))
    }
}

impl std::iter::FusedIterator for Order {}
