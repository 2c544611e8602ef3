//! Tests of reductions.
