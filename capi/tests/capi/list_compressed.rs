//! The list of compressed collectives in C. The functions of the library, their part of the header and the
//! tests in C are made from it: see `listed_compressed.rs`.

/// A collective, which has a function that waits and one that starts it.
pub struct Entry {
    /// After `brv_`, or `brv_i`.
    pub name: &'static str,
    /// The struct of its arguments in `src/compressed/`.
    pub arguments: &'static str,
    /// Between the group and the options. Entries of a sparse vector are four.
    pub parameters: &'static [Parameter],
    /// For the header: paragraphs.
    pub docs: &'static str,
}

/// A parameter of a collective.
#[derive(Clone, Copy, PartialEq)]
pub enum Parameter {
    /// The sparse vector of this rank.
    Entries,
    /// A parameter in C, its type in Rust, and its name.
    Plain(&'static str, &'static str, &'static str),
}

use Parameter::{Entries, Plain};

const fn count(name: &'static str) -> Parameter {
    Plain("size_t ", "usize", name)
}

const fn sparse(name: &'static str) -> Parameter {
    Plain("brv_sparse *", "*mut brv_sparse", name)
}

const LIMIT: Parameter = count("limit");
const PUT_BACK: Parameter = Plain("brv_put_back ", "brv_put_back", "put_back");
const FORMAT: Parameter = Plain("brv_values ", "brv_values", "format");
const SUM: Parameter = sparse("sum");
const KEPT: Parameter = sparse("kept");

const IN: Parameter = Plain("const float *", "*const f32", "in");
const OUT: Parameter = Plain("float *", "*mut f32", "out");

/// All of them, in the order of the header.
pub const ALL: &[Entry] = &[
    Entry {
        name: "gtopk_all_reduce",
        arguments: "GtopkArguments",
        parameters: &[Entries, count("k"), PUT_BACK, FORMAT, SUM, KEPT],
        docs: "\
Sums the sparse vectors of all ranks and keeps the k entries of largest magnitude, of equal ones those with
lower indices: gTop-k (Shi et al., ICDCS 2019). sum gets these entries, kept what this rank adds to its
residual by the rule put_back, and what rounding takes away. k and put_back are the same on all ranks, and
count is at most k.

Costs 2 ceil(log2 P) rounds of at most 8 k bytes each. kept must not be NULL.

BRV_ERR_NON_FINITE if a value, or a sum of two ranks that merge, is not finite.",
    },
    Entry {
        name: "topk_all_reduce",
        arguments: "TopkArguments",
        parameters: &[Entries, LIMIT, FORMAT, SUM, KEPT],
        docs: "\
Sums the sparse vectors of all ranks, in the order of dense sums: sum gets all entries of the sum, on every
rank. kept gets what rounding takes away. limit is the same on all ranks, and count is at most limit.

options.algorithm may be BRV_ALGORITHM_BRUCK (a sparse all-gather: ceil(log2 P) rounds, at most 8 (P - 1)
limit bytes), BRV_ALGORITHM_DIRECT (each rank sums a range of the indices, and all get the sums) or, where
format is exact, BRV_ALGORITHM_DOUBLING (ranks exchange sums, which become dense where that is shorter):
Renggli et al., SC 2019.

BRV_ERR_NON_FINITE if a value or a sum is not finite.",
    },
    Entry {
        name: "sparse_all_gather",
        arguments: "SparseAllGatherArguments",
        parameters: &[Entries, LIMIT, FORMAT, Plain("brv_sparse *const *", "*const *mut brv_sparse", "all")],
        docs: "\
Gathers the sparse vectors of all ranks: all is an array with a brv_sparse for each rank, which gets that
rank's vector. Every rank gets the rounded values, of its own vector too; what rounding takes away is the
difference. limit is the same on all ranks, and count is at most limit.

Costs ceil(log2 P) rounds, and at most 8 (P - 1) limit bytes.

BRV_ERR_NON_FINITE if a value is not finite; with BRV_VALUES_F32 values may be anything.",
    },
    Entry {
        name: "sparse_reduce_scatter",
        arguments: "SparseReduceScatterArguments",
        parameters: &[Entries, LIMIT, FORMAT, SUM, KEPT],
        docs: "\
Sums the sparse vectors of all ranks, in the order of dense sums, a range of the indices to each rank: sum
gets the entries of the sum from rank * m to below (rank + 1) * m, where m is dim / P, rounded up; it has
the dim of the whole vector. kept gets what rounding takes away. limit is the same on all ranks, and count is
at most limit. Costs P - 1 messages of about limit / P entries, and a barrier.

BRV_ERR_NON_FINITE if a value or a sum is not finite.",
    },
    Entry {
        name: "ok_topk_all_reduce",
        arguments: "OkTopkArguments",
        parameters: &[Entries, Plain("brv_ok_topk *", "*mut brv_ok_topk", "ok_topk"), FORMAT, SUM, KEPT],
        docs: "\
Sums the sparse vectors of all ranks and keeps about k of the largest entries, k / 2 to 2 k of them or all:
Ok-Topk (Li and Hoefler, PPoPP 2022). sum gets these entries, kept what this rank adds to its residual: the
entries that are not in the result, and what rounding takes away. dim is that of ok_topk, and count is at most
2 k, as what brv_ok_topk_select gives. All ranks have used their ok_topk alike; it takes a step, unless the
call fails. While a started call has not ended, ok_topk is in use.

Costs about 2 k (P - 1) / P entries of 8 bytes a rank, whatever P is, and at most twice as many; 1 + 2
ceil(log2 P) rounds, and in steps that estimate a threshold or a partition anew those of up to 10 all-reduces
of few bytes. kept must not be NULL.

BRV_ERR_NON_FINITE if a value or a sum is not finite.",
    },
    Entry {
        name: "hierarchical_all_reduce",
        arguments: "HierarchicalArguments",
        parameters: &[
            IN,
            Plain("float *", "*mut f32", "kept"),
            count("n"),
            count("k"),
            Plain("brv_leader_sum ", "brv_leader_sum", "leader_sum"),
            PUT_BACK,
            FORMAT,
            SUM,
        ],
        docs: "\
Sums the vectors of all ranks, densely inside the hosts and sparsely between them: the ranks of a host sum
their n elements at in to the first of them, the leader. Each leader selects the k entries of largest
magnitude of its host's sum, of equal ones those with lower indices. Leaders sum these as leader_sum says,
with values in this format, and hand the result to their hosts: sum gets it on every rank. kept gets n
elements: on leaders what was not delivered of the vectors of their hosts, on other ranks zeros. In place:
in == kept, which an error leaves as it is; so the vector is a residual, to which each step adds its gradient.
n is at most 2^32; n, k, leader_sum, put_back and format are the same on all ranks. put_back is the rule of
gTop-k.

The result depends on which ranks share a host, but not on whether they share memory. With H hosts of at most
L ranks it costs 2 ceil(log2 L) rounds inside the hosts, of 4 n bytes to the leader and of at most 8 k bytes
back (8 k H with top-k), and between leaders what gTop-k or top-k cost among H ranks.

BRV_ERR_NON_FINITE if a value or a sum is not finite.",
    },
    Entry {
        name: "random_k_all_reduce",
        arguments: "RandomKArguments",
        parameters: &[
            IN,
            count("n"),
            count("k"),
            Plain("brv_draw ", "brv_draw", "draw"),
            Plain("uint64_t ", "u64", "seed"),
            Plain("uint64_t ", "u64", "step"),
            SUM,
        ],
        docs: "\
Sums the vectors of all ranks at k places, or all if there are fewer, which all ranks draw alike, by the seed
and the number of the step: only the values travel, by a dense all-reduce of k elements (random K and random
block: Vogels et al., NeurIPS 2019). sum gets an entry for each place. in is unchanged: what a rank keeps for
later steps is in with zeros at the indices of sum (brv_sparse_clear_in). n is at most 2^32; n, k, draw, seed
and step are the same on all ranks.

BRV_ERR_NON_FINITE if a value, at one of the places or not, or a sum is not finite.",
    },
    Entry {
        name: "block_all_reduce",
        arguments: "BlockArguments",
        parameters: &[IN, OUT, count("n"), count("block")],
        docs: "\
Sums the n elements at in over all ranks, to out on every rank; blocks of `block` elements that are entirely
zero do not travel (OmniReduce: Fei et al., SIGCOMM 2021). The sum has the bits of the dense one, except that
a zero may have the other sign. block is 1 or more, the same on all ranks, and leaves fewer than 2^32 blocks.
In place: in == out.

Costs 2 rounds, and (P - 1) / P times 4 + 4 block bytes for each block of in, and of the sum, that is not
zero.

BRV_ERR_NON_FINITE if a value or a sum is not finite.",
    },
    Entry {
        name: "quantised_all_reduce",
        arguments: "QuantisedArguments",
        parameters: &[IN, OUT, Plain("float *", "*mut f32", "kept"), count("n"), FORMAT],
        docs: "\
Sums the n elements at in over all ranks, to out on every rank, with values in this format on the wire: each
rank rounds what it sends to the others, which sum a slice each, and its own slice of the sum (as in 1-bit
SGD: Seide et al., Interspeech 2014). kept gets n elements: what rounding takes away on this rank. out and
kept of all ranks add up to the sum of in of all ranks, up to rounding of the sums. In place: in == out; kept
is apart. It may be NULL with BRV_VALUES_F32. BRV_VALUES_F32_PACKED is refused: there are no indices.

Costs 2 rounds, and 2 (P - 1) / P times the bytes of n values a rank.

BRV_ERR_NON_FINITE if a value or a sum is not finite.",
    },
    Entry {
        name: "vote_all_reduce",
        arguments: "VoteArguments",
        parameters: &[IN, OUT, count("n")],
        docs: "\
Elects the sign of each of the n elements: out gets the majority of the signs of in of all ranks, as 1, -1,
or 0 for a tie and where all have 0 (signSGD with majority vote: Bernstein et al., ICLR 2019). A 0 votes for
nothing. What a vote ignores is not kept anywhere. In place: in == out.

Costs 2 rounds, and (P - 1) / P times n / 4 to n / 2 bytes a rank.

BRV_ERR_NON_FINITE if a value is not finite.",
    },
    Entry {
        name: "low_rank_all_reduce",
        arguments: "LowRankArguments",
        parameters: &[
            Plain("brv_low_rank *", "*mut brv_low_rank", "low_rank"),
            Plain("const float *const *", "*const *const f32", "matrices"),
            count("tensors"),
        ],
        docs: "\
Computes the factors of the mean of all ranks' matrices (PowerSGD: Vogels et al., NeurIPS 2019): one dense
all-reduce of the left factors of all matrices, and one of the right factors. matrices has a pointer to each
matrix that low_rank has, row-major; tensors is their number. The factors are kept in low_rank, which all
ranks have used alike: brv_low_rank_mean and brv_low_rank_own read them. After an error it has the factors
that it had. While a started call has not ended, low_rank is in use.

BRV_ERR_NON_FINITE if a value or a factor is not finite.",
    },
];
