//! Quantisers: what is sent plus what stays is the input; hostile bytes are refused; random rounding has no
//! bias.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod contraction;
mod feedback;
mod formats;
#[path = "../shapes/mod.rs"]
mod shapes;
mod statistics;
mod votes;

use brevity_compress::generator::Generator;
use brevity_compress::quantise::{
    ColumnSign, Encoded, HalfPrecision, Magnitude, MinMax, Norm, Qsgd, Quantiser, Sign, Ternary, TwoBit,
};

/// One of each kind.
fn quantisers(seed: u64) -> Vec<Box<dyn Quantiser>> {
    vec![
        Box::new(HalfPrecision::f16()),
        Box::new(HalfPrecision::bf16()),
        Box::new(Sign::new(Magnitude::Mean)),
        Box::new(Sign::new(Magnitude::Min)),
        Box::new(ColumnSign::means(7)),
        Box::new(ColumnSign::pairs(3)),
        Box::new(TwoBit::new(Magnitude::Mean)),
        Box::new(TwoBit::new(Magnitude::Min)),
        Box::new(Ternary::new(seed)),
        Box::new(Ternary::clipped(seed, 2.5)),
        Box::new(Qsgd::new(1, 1024, Norm::Euclidean, seed)),
        Box::new(Qsgd::new(7, 512, Norm::Largest, seed)),
        Box::new(Qsgd::new(100, 512, Norm::Euclidean, seed)),
        Box::new(MinMax::default()),
    ]
}

fn decoded(quantiser: &mut (impl Quantiser + ?Sized), values: &[f32]) -> Vec<f32> {
    let mut bytes = vec![9; 3];
    quantiser.encode(values, &mut bytes).unwrap();
    assert_eq!(bytes.len(), quantiser.encoded_bytes(values.len()), "{:?}", quantiser.format());
    let mut out = vec![f32::NAN; values.len()];
    Encoded::new(quantiser.format(), values.len(), &bytes).unwrap().decode_into(&mut out).unwrap();
    assert!(out.iter().all(|v| v.is_finite()), "{:?}", quantiser.format());
    out
}

fn values_at(n: usize, seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; n];
    Generator::new(seed).fill_normal(&mut values);
    values
}
