//! The methods of `train --method`.

use clap::ValueEnum;
use std::fmt;

/// How gradients are averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Method {
    /// Everything, uncompressed.
    Dense,
    /// Every rank's largest entries, gathered by all.
    Topk,
    /// The largest entries of all ranks together.
    Gtopk,
    /// The same with the published put-back rule, which loses what merges drop.
    GtopkPublished,
    /// The same where a merging rank keeps all that its merges drop.
    GtopkMergerKeeps,
    /// Two thin factors a matrix (PowerSGD).
    Lowrank,
    /// Every element in 8 bits, with error feedback.
    EightBit,
    /// Every element in 2 bits, with error feedback.
    TwoBit,
    /// Every element's sign, times the mean of its matrix, with error feedback.
    OneBit,
    /// The majority of the signs of a momentum of 0.9.
    Signum,
    /// As `topk`, after a momentum of 0.9 with masking (DGC).
    Dgc,
    /// Entries of the sum that reach a threshold, about as many as topk keeps (Ok-Topk).
    Oktopk,
    /// Every element rounded at random to 4 bits (QSGD), with error feedback.
    Qsgd,
    /// Every element rounded at random to -1, 0 or 1 times half of the largest magnitude (TernGrad with other
    /// clipping), with error feedback.
    Terngrad,
    /// Entries at places that all ranks draw alike, with error feedback.
    RandomK,
    /// The same at consecutive places.
    RandomBlock,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Dense => "dense",
            Self::Topk => "topk",
            Self::Gtopk => "gtopk",
            Self::GtopkPublished => "gtopk-published",
            Self::GtopkMergerKeeps => "gtopk-merger-keeps",
            Self::Lowrank => "lowrank",
            Self::EightBit => "eight-bit",
            Self::TwoBit => "two-bit",
            Self::OneBit => "one-bit",
            Self::Signum => "signum",
            Self::Dgc => "dgc",
            Self::Oktopk => "oktopk",
            Self::Qsgd => "qsgd",
            Self::Terngrad => "terngrad",
            Self::RandomK => "random-k",
            Self::RandomBlock => "random-block",
        })
    }
}
