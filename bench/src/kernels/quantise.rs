//! Dense sums, conversions and quantisers, over an addition or a copy of as many `f32`.

use std::hint::black_box;

use brevity::compress::dense::{Element, add_assign, add_assign_plain, from_f32};
use brevity::compress::generator::Generator;
use brevity::compress::quantise::{
    BucketFeedback, Bucketed, DeferredFeedback, Encoded, HalfPrecision, Magnitude, MinMax, Norm, OnePass, Qsgd,
    Quantiser, Sign, Ternary, TwoBit,
};
use half::{bf16, f16};

use super::{Extent, Row, Subject, measure as measure_row};
use crate::{Error, Result};

/// A gradient, and vectors for the floors to write.
struct Vectors {
    gradient: Vec<f32>,
    sum: Vec<f32>,
    extent: Extent,
}

/// Measures all rows.
pub(super) fn measure(extent: Extent, told: &mut impl FnMut(Row)) -> Result<()> {
    let mut gradient = vec![0.0; extent.elements];
    Generator::new(5).fill_normal(&mut gradient);
    let mut vectors = Vectors { sum: gradient.clone(), gradient, extent };
    // Bandwidth of two reads and a write at least 1.4 and 1.7 times that of a copy of as many f32.
    told(vectors.sum_row::<f32>(Some(1.5 / 1.4)));
    told(vectors.sum_row::<f64>(None));
    told(vectors.sum_row::<bf16>(Some(0.75 / 1.7)));
    told(vectors.sum_row::<f16>(Some(0.75 / 1.7)));
    told(vectors.conversion_row::<bf16>(Some(1.2)));
    told(vectors.conversion_row::<f16>(None));
    for (magnitude, name) in [(Magnitude::Mean, "means"), (Magnitude::Min, "smallest")] {
        told(vectors.one_pass_row(&format!("1 bit, {name}, with feedback"), Sign::new(magnitude), Some(1.4))?);
        told(vectors.one_pass_row(&format!("2 bits, {name}, with feedback"), TwoBit::new(magnitude), Some(1.15))?);
    }
    told(vectors.bucket_row("QSGD, 7 levels, with feedback", Qsgd::new(7, 512, Norm::Euclidean, 1))?);
    told(vectors.bucket_row("QSGD, 127 levels, with feedback", Qsgd::new(127, 512, Norm::Euclidean, 1))?);
    told(vectors.bucket_row("8 bits, min-max, with feedback", MinMax::default())?);
    told(vectors.bucket_row("bf16, with feedback", HalfPrecision::bf16())?);
    told(vectors.encoding_row("TernGrad, encoding", Ternary::new(1)));
    told(vectors.decoding_row("1 bit, adding up", Sign::default())?);
    told(vectors.decoding_row("2 bits, adding up", TwoBit::default())?);
    Ok(())
}

impl Vectors {
    fn subject(&self, kernel: String, bytes: usize, floor: &'static str, bar: Option<f64>) -> Subject {
        let elements = self.extent.elements;
        Subject { kernel, elements, density: None, bytes: bytes * elements, floor, bar }
    }

    fn acc(&mut self) {
        add_assign_plain(&mut self.sum, &self.gradient).unwrap_or_default();
    }

    fn copy(&mut self) {
        black_box(&mut self.sum[..]).copy_from_slice(black_box(&self.gradient));
    }

    fn sum_row<E: Element>(&mut self, bar: Option<f64>) -> Row {
        let mut a = vec![E::default(); self.gradient.len()];
        // A normal deviate fits every type.
        from_f32(&self.gradient, &mut a).unwrap_or_default();
        let b = a.clone();
        let subject = self.subject(format!("a += b, {}", E::NAME), 3 * size_of::<E>(), "copy", bar);
        let kernel = |_: &mut Self| add_assign(&mut a, &b).unwrap_or_default();
        measure_row(subject, self.extent.iterations, self, |_| (), Self::copy, kernel)
    }

    fn conversion_row<E: Element>(&mut self, bar: Option<f64>) -> Row {
        let mut to = vec![E::default(); self.gradient.len()];
        let subject = self.subject(format!("f32 to {}", E::NAME), 4 + size_of::<E>(), "copy", bar);
        let kernel = |vectors: &mut Self| from_f32(&vectors.gradient, &mut to).unwrap_or_default();
        measure_row(subject, self.extent.iterations, self, |_| (), Self::copy, kernel)
    }

    fn one_pass_row<Q: OnePass>(&mut self, name: &str, quantiser: Q, bar: Option<f64>) -> Result<Row> {
        let (n, format) = (self.gradient.len(), quantiser.format());
        let mut feedback = DeferredFeedback::new(n, quantiser);
        let mut said = vec![0.0; n];
        let message = feedback.compress(&self.gradient).map_err(|error| wrong(name, error))?;
        let message = Encoded::new(format, n, message).map_err(|error| wrong(name, error))?;
        message.decode_into(&mut said).map_err(|error| wrong(name, error))?;
        self.verify(name, &said, feedback.residual())?;
        let kernel = |vectors: &mut Self| {
            black_box(feedback.compress(&vectors.gradient).is_ok());
        };
        let subject = self.subject(name.to_owned(), 12, "acc", bar);
        Ok(measure_row(subject, self.extent.iterations, self, |_| (), Self::acc, kernel))
    }

    fn bucket_row<Q: Bucketed>(&mut self, name: &str, quantiser: Q) -> Result<Row> {
        let (n, format) = (self.gradient.len(), quantiser.format());
        let mut feedback = BucketFeedback::new(n, quantiser);
        let (mut said, mut bytes) = (vec![0.0; n], Vec::new());
        feedback.compress(&self.gradient, &mut bytes).map_err(|error| wrong(name, error))?;
        let message = Encoded::new(format, n, &bytes).map_err(|error| wrong(name, error))?;
        message.decode_into(&mut said).map_err(|error| wrong(name, error))?;
        self.verify(name, &said, feedback.residual())?;
        let kernel = |vectors: &mut Self| feedback.compress(&vectors.gradient, &mut bytes).unwrap_or_default();
        let subject = self.subject(name.to_owned(), 12, "acc", None);
        Ok(measure_row(subject, self.extent.iterations, self, |_| (), Self::acc, kernel))
    }

    fn encoding_row(&mut self, name: &str, mut quantiser: impl Quantiser) -> Row {
        let mut bytes = Vec::new();
        let kernel = |vectors: &mut Self| quantiser.encode(&vectors.gradient, &mut bytes).unwrap_or_default();
        let subject = self.subject(name.to_owned(), 4, "acc", None);
        measure_row(subject, self.extent.iterations, self, |_| (), Self::acc, kernel)
    }

    fn decoding_row(&mut self, name: &str, mut quantiser: impl Quantiser) -> Result<Row> {
        let (mut bytes, mut into) = (Vec::new(), self.gradient.clone());
        quantiser.encode(&self.gradient, &mut bytes).map_err(|error| wrong(name, error))?;
        let message = Encoded::new(quantiser.format(), into.len(), &bytes).map_err(|error| wrong(name, error))?;
        let kernel = |_: &mut Self| message.add_to(1.0, &mut into).unwrap_or_default();
        let subject = self.subject(name.to_owned(), 8, "acc", None);
        Ok(measure_row(subject, self.extent.iterations, self, |_| (), Self::acc, kernel))
    }

    /// What is said and what stays must be the gradient, to rounding.
    fn verify(&self, name: &str, said: &[f32], stays: &[f32]) -> Result<()> {
        let mut all = said.iter().zip(stays).zip(&self.gradient);
        let bound = |said: f32, g: f32| 2.0 * f64::from(f32::EPSILON) * f64::from(said.abs() + g.abs());
        if all.all(|((&said, &stays), &g)| (f64::from(said) + f64::from(stays) - f64::from(g)).abs() <= bound(said, g))
        {
            Ok(())
        } else {
            Err(wrong(name, "what is sent and what stays is not what came in"))
        }
    }
}

fn wrong(name: &str, what: impl ToString) -> Error {
    Error::contestant(name, what.to_string())
}
