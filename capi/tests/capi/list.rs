//! The list of dense collectives in C. The functions of the library, their part of the header and the tests
//! in C are made from it: see `listed.rs`.

use Parameter::{In, Lengths, N, Out, Received, Reduction, Root, Sent, Type};

/// A collective, which has a function that waits and one that starts it.
pub struct Entry {
    /// After `brv_`, or `brv_i`.
    pub name: &'static str,
    /// The operation in `src/dense/mod.rs`.
    pub operation: &'static str,
    /// Between the group and the options.
    pub parameters: &'static [Parameter],
    /// For the header: paragraphs.
    pub docs: &'static str,
}

/// A parameter of a collective.
#[derive(Clone, Copy, PartialEq)]
pub enum Parameter {
    /// Memory that is read.
    In(&'static str),
    /// Memory that is written.
    Out(&'static str),
    /// Elements of a vector or block.
    N,
    /// Elements of the block of each rank.
    Lengths,
    /// The same, of the blocks that this rank sends.
    Sent,
    /// The same, of the blocks that it receives.
    Received,
    /// The type of the elements.
    Type,
    /// How elements are combined.
    Reduction,
    /// The rank that has all blocks, or the vector.
    Root,
}

const IN: Parameter = In("in");
const OUT: Parameter = Out("out");

/// All of them, in the order of the header.
pub const ALL: &[Entry] = &[
    Entry {
        name: "barrier",
        operation: "Barrier",
        parameters: &[],
        docs: "Waits until all ranks have called this.",
    },
    Entry {
        name: "broadcast",
        operation: "Broadcast { root }",
        parameters: &[Out("data"), N, Type, Root],
        docs: "\
Copies the n elements at data of rank root to all ranks. On the other ranks data need not be set before,
and is unspecified after an error.",
    },
    Entry {
        name: "broadcast_to",
        operation: "BroadcastTo { root }",
        parameters: &[IN, OUT, N, Type, Root],
        docs: "\
Copies the n elements at in of rank root to out on every rank. in of other ranks is not looked at, and may
be NULL. In place: in == out, which saves the root's copy.",
    },
    Entry {
        name: "reduce",
        operation: "Reduce { reduction, root }",
        parameters: &[IN, OUT, N, Type, Reduction, Root],
        docs: "\
Reduces the n elements at in over all ranks, to out on rank root. out of other ranks is not looked at, and
may be NULL. In place: in == out; on other ranks than root the elements are then unspecified afterwards.",
    },
    Entry {
        name: "all_reduce",
        operation: "AllReduce { reduction }",
        parameters: &[IN, OUT, N, Type, Reduction],
        docs: "\
Reduces the n elements at in over all ranks, to out on every rank. In place: in == out.

BRV_ERR_TRANSPORT if there is no memory for received data, also from other calls that reduce; a group of
one needs none.",
    },
    Entry {
        name: "reduce_scatter",
        operation: "ReduceScatter { reduction }",
        parameters: &[IN, OUT, N, Type, Reduction],
        docs: "\
Reduces the blocks of n elements at in over all ranks, to n elements at out: each rank gets the block of its
own place. In place: out == in + rank * n; the other blocks are then unspecified afterwards.",
    },
    Entry {
        name: "reduce_scatter_v",
        operation: "ReduceScatter { reduction }",
        parameters: &[IN, OUT, Lengths, Type, Reduction],
        docs: "\
Like brv_reduce_scatter, with blocks of these lengths, the same list on all ranks; BRV_ERR_MISMATCH if lists
differ. In place: out is this rank's block of in.",
    },
    Entry {
        name: "all_gather",
        operation: "AllGather",
        parameters: &[In("own"), Out("all"), N, Type],
        docs: "\
Gathers the n elements at own of every rank: all gets a block of n elements of each. In place: own == all +
rank * n.",
    },
    Entry {
        name: "all_gather_v",
        operation: "AllGather",
        parameters: &[In("own"), Out("all"), Lengths, Type],
        docs: "\
Like brv_all_gather, with blocks of these lengths, the same list on all ranks; BRV_ERR_MISMATCH if lists
differ. In place: own is this rank's block of all.",
    },
    Entry {
        name: "gather",
        operation: "Gather { root }",
        parameters: &[In("own"), Out("all"), N, Type, Root],
        docs: "\
Gathers the n elements at own of every rank at rank root: its all gets a block of n elements of each. all of
other ranks is not looked at, and may be NULL. In place, at root: own == all + rank * n.",
    },
    Entry {
        name: "gather_v",
        operation: "Gather { root }",
        parameters: &[In("own"), Out("all"), Lengths, Type, Root],
        docs: "\
Like brv_gather, with blocks of these lengths. Of the list of another rank than root only its own length
counts; BRV_ERR_PROTOCOL if that is not what root expects. In place, at root: own is its block of all.",
    },
    Entry {
        name: "scatter",
        operation: "Scatter { root }",
        parameters: &[In("all"), Out("own"), N, Type, Root],
        docs: "\
Gives every rank its block of all of rank root, which has n elements for each: n elements at own. all of
other ranks is not looked at, and may be NULL. In place, at root: own == all + rank * n.",
    },
    Entry {
        name: "scatter_v",
        operation: "Scatter { root }",
        parameters: &[In("all"), Out("own"), Lengths, Type, Root],
        docs: "\
Like brv_scatter, with blocks of these lengths. Of the list of another rank than root only its own length
counts; BRV_ERR_PROTOCOL if that is not what root sends. In place, at root: own is its block of all.",
    },
    Entry {
        name: "all_to_all",
        operation: "AllToAll",
        parameters: &[IN, OUT, N, Type],
        docs: "\
Sends a block of n elements to every rank, and receives one of each: block i of in goes to rank i, and block
i of out comes from it. In place: in == out.",
    },
    Entry {
        name: "all_to_all_v",
        operation: "AllToAll",
        parameters: &[IN, OUT, Sent, Received, Type],
        docs: "\
Like brv_all_to_all, with blocks of these lengths: of those that this rank sends, and of those that it
receives; BRV_ERR_PROTOCOL if the sender of a block has another length. In place: in == out, with two equal
lists.",
    },
];
