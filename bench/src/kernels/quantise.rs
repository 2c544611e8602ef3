//! Quantisers, over an addition or a copy of as many `f32`.

use std::hint::black_box;

use brevity::compress::quantise::{
    BucketFeedback, Bucketed, ColumnSign, DeferredFeedback, Encoded, Feedback, HalfPrecision, Magnitude, MinMax, Norm,
    OnePass, Qsgd, Quantiser, Sign, Ternary, TwoBit, Votes,
};

use super::vectors::Vectors;
use super::{Extent, Group, Row, refused};
use crate::{Error, Result};

/// Values of a bucket.
const BUCKET: u32 = 512;

/// Columns of a matrix that is as long as the vector.
const COLUMNS: u32 = 5000;

/// Ranks that vote.
const VOTERS: usize = 8;

/// Measures all rows.
pub(super) fn measure(extent: Extent, told: &mut impl FnMut(Row)) -> Result<()> {
    let mut vectors = Vectors::new(extent);
    for (magnitude, name) in [(Magnitude::Mean, "means"), (Magnitude::Min, "smallest")] {
        told(vectors.one_pass_row(&format!("1 bit, {name}, with feedback"), Sign::new(magnitude), 1.4)?);
        told(vectors.one_pass_row(&format!("2 bits, {name}, with feedback"), TwoBit::new(magnitude), 1.15)?);
    }
    told(vectors.any_row("1 bit, column means, with feedback", ColumnSign::means(COLUMNS))?);
    told(vectors.any_row("1 bit, column pairs, with feedback", ColumnSign::pairs(COLUMNS))?);
    told(vectors.bucket_row("QSGD, 1 level, with feedback", Qsgd::new(1, BUCKET, Norm::Euclidean, 1))?);
    told(vectors.bucket_row("QSGD, 7 levels, with feedback", Qsgd::new(7, BUCKET, Norm::Euclidean, 1))?);
    told(vectors.bucket_row("QSGD, 127 levels, with feedback", Qsgd::new(127, BUCKET, Norm::Euclidean, 1))?);
    told(vectors.bucket_row("8 bits, min-max, with feedback", MinMax::default())?);
    told(vectors.bucket_row("bf16, with feedback", HalfPrecision::bf16())?);
    told(vectors.bucket_row("f16, with feedback", HalfPrecision::f16())?);
    told(vectors.encoding_row("1 bit, encode", Sign::default()));
    told(vectors.encoding_row("2 bits, encode", TwoBit::default()));
    told(vectors.encoding_row("TernGrad, encode", Ternary::new(1)));
    told(vectors.encoding_row("QSGD, 7 levels, encode", Qsgd::new(7, BUCKET, Norm::Euclidean, 1)));
    told(vectors.encoding_row("8 bits, min-max, encode", MinMax::default()));
    told(vectors.adding_row("1 bit, add", Sign::default())?);
    told(vectors.adding_row("2 bits, add", TwoBit::default())?);
    told(vectors.adding_row("TernGrad, add", Ternary::new(1))?);
    told(vectors.adding_row("QSGD, 7 levels, add", Qsgd::new(7, BUCKET, Norm::Euclidean, 1))?);
    told(vectors.adding_row("8 bits, min-max, add", MinMax::default())?);
    told(vectors.adding_row("bf16, add", HalfPrecision::bf16())?);
    told(vectors.vote_row()?);
    Ok(())
}

impl Vectors {
    fn one_pass_row<Q: OnePass>(&mut self, name: &str, quantiser: Q, bar: f64) -> Result<Row> {
        let (n, format) = (self.gradient.len(), quantiser.format());
        let mut feedback = DeferredFeedback::new(n, quantiser);
        let mut said = vec![0.0; n];
        let message = feedback.compress(&self.gradient).map_err(refused(name))?;
        let message = Encoded::new(format, n, message).map_err(refused(name))?;
        message.decode_into(&mut said).map_err(refused(name))?;
        self.verify(name, &said, feedback.residual())?;
        let kernel = |vectors: &mut Self| {
            black_box(feedback.compress(&vectors.gradient).is_ok());
        };
        let subject = self.subject(Group::Quantise, name, 12, "acc").at_most(bar);
        Ok(self.row(subject, Self::acc, kernel))
    }

    fn bucket_row<Q: Bucketed>(&mut self, name: &str, quantiser: Q) -> Result<Row> {
        let (n, format) = (self.gradient.len(), quantiser.format());
        let mut feedback = BucketFeedback::new(n, quantiser);
        let (mut said, mut bytes) = (vec![0.0; n], Vec::new());
        feedback.compress(&self.gradient, &mut bytes).map_err(refused(name))?;
        let message = Encoded::new(format, n, &bytes).map_err(refused(name))?;
        message.decode_into(&mut said).map_err(refused(name))?;
        self.verify(name, &said, feedback.residual())?;
        let kernel = |vectors: &mut Self| feedback.compress(&vectors.gradient, &mut bytes).unwrap_or_default();
        let subject = self.subject(Group::Quantise, name, 12, "acc");
        Ok(self.row(subject, Self::acc, kernel))
    }

    /// Feedback in three passes.
    fn any_row<Q: Quantiser>(&mut self, name: &str, quantiser: Q) -> Result<Row> {
        let (n, format) = (self.gradient.len(), quantiser.format());
        let mut feedback = Feedback::new(n, quantiser);
        let (mut said, mut bytes) = (vec![0.0; n], Vec::new());
        feedback.compress(&self.gradient, &mut bytes).map_err(refused(name))?;
        let message = Encoded::new(format, n, &bytes).map_err(refused(name))?;
        message.decode_into(&mut said).map_err(refused(name))?;
        self.verify(name, &said, feedback.residual())?;
        let kernel = |vectors: &mut Self| feedback.compress(&vectors.gradient, &mut bytes).unwrap_or_default();
        let subject = self.subject(Group::Quantise, name, 12, "acc");
        Ok(self.row(subject, Self::acc, kernel))
    }

    fn encoding_row(&mut self, name: &str, mut quantiser: impl Quantiser) -> Row {
        let mut bytes = Vec::new();
        let kernel = |vectors: &mut Self| quantiser.encode(&vectors.gradient, &mut bytes).unwrap_or_default();
        let subject = self.subject(Group::Quantise, name, 4, "acc");
        self.row(subject, Self::acc, kernel)
    }

    /// A message added to a dense vector.
    fn adding_row(&mut self, name: &str, mut quantiser: impl Quantiser) -> Result<Row> {
        let (mut bytes, mut into) = (Vec::new(), self.gradient.clone());
        quantiser.encode(&self.gradient, &mut bytes).map_err(refused(name))?;
        let message = Encoded::new(quantiser.format(), into.len(), &bytes).map_err(refused(name))?;
        let kernel = |_: &mut Self| message.add_to(1.0, &mut into).unwrap_or_default();
        let subject = self.subject(Group::Quantise, name, 8, "acc");
        Ok(self.row(subject, Self::acc, kernel))
    }

    /// Votes of eight ranks and their majority.
    fn vote_row(&mut self) -> Result<Row> {
        let name = "signs, a vote of 8";
        let (n, mut sign, mut bytes) = (self.gradient.len(), Sign::default(), Vec::new());
        sign.encode(&self.gradient, &mut bytes).map_err(refused(name))?;
        let message = Encoded::new(sign.format(), n, &bytes).map_err(refused(name))?;
        let (mut votes, mut signs) = (Votes::new(n), vec![0.0; n]);
        let kernel = |_: &mut Self| {
            votes.clear();
            (0..VOTERS).for_each(|_| votes.add(message).unwrap_or_default());
            votes.majority(&mut signs).unwrap_or_default();
        };
        let subject = self.subject(Group::Quantise, name, 4, "acc");
        Ok(self.row(subject, Self::acc, kernel))
    }

    /// What is said and what stays must be the gradient, to rounding.
    fn verify(&self, name: &str, said: &[f32], stays: &[f32]) -> Result<()> {
        let mut all = said.iter().zip(stays).zip(&self.gradient);
        let bound = |said: f32, g: f32| 2.0 * f64::from(f32::EPSILON) * f64::from(said.abs() + g.abs());
        if all.all(|((&said, &stays), &g)| (f64::from(said) + f64::from(stays) - f64::from(g)).abs() <= bound(said, g))
        {
            Ok(())
        } else {
            Err(Error::contestant(name, "what is sent and what stays is not what came in"))
        }
    }
}
