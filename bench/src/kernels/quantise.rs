//! Quantisers, compared with an addition or a copy of as many `f32`.

use std::hint::black_box;

use brevity::compress::quantise::{
    BucketFeedback, Bucketed, ColumnSign, DeferredFeedback, Encoded, Feedback, HalfPrecision, MinMax, Norm,
    OnePass, Qsgd, Quantiser, Sign, Signs, Ternary, TwoBit, Votes, elias, encode_signs,
};

use super::vectors::Vectors;
use super::{Done, Extent, Group, Row, Subject, check, refused};
use crate::Result;

/// Values of a bucket.
const BUCKET: u32 = 512;

/// Columns of a matrix with as many elements as the vector.
const COLUMNS: u32 = 5000;

/// Ranks that vote.
const VOTERS: usize = 8;

/// Measures all rows.
pub(super) fn measure(extent: Extent, told: &mut impl FnMut(Row)) -> Result<()> {
    let mut vectors = Vectors::new(extent);
    told(vectors.one_pass_row("1 bit, means, with feedback", Sign::default(), 1.4)?);
    told(vectors.one_pass_row("2 bits, means, with feedback", TwoBit::default(), 1.15)?);
    for (name, quantiser) in [
        ("1 bit, column means", ColumnSign::means(COLUMNS)),
        ("1 bit, column pairs", ColumnSign::pairs(COLUMNS)),
    ] {
        let feedback = Feedback::new(extent.elements, quantiser).map_err(refused(name))?;
        told(vectors.feedback_row(
            name,
            feedback,
            Feedback::compress,
            Feedback::residual,
            Feedback::quantiser,
        )?);
    }
    for levels in [12, 127] {
        let quantiser = Qsgd::new(levels, BUCKET, Norm::Euclidean, 1);
        told(vectors.bucket_row(&format!("QSGD, {levels} levels"), quantiser)?);
    }
    told(vectors.bucket_row("8 bits, min-max", MinMax::default())?);
    told(vectors.bucket_row("bf16", HalfPrecision::bf16())?);
    told(vectors.bucket_row("f16", HalfPrecision::f16())?);
    told(vectors.encoding_row("1 bit, encode", Sign::default(), means_by_threshold)?);
    told(vectors.encoding_row("2 bits, encode", TwoBit::default(), means_by_threshold)?);
    told(vectors.encoding_row("TernGrad, encode", Ternary::new(1), |v, said| {
        let most = v.iter().fold(0.0_f32, |most, v| v.abs().max(most));
        v.iter().zip(said).all(|(v, said)| *said == 0.0 || *said == most.copysign(*v))
    })?);
    told(vectors.encoding_row(
        "QSGD, 7 levels, encode",
        Qsgd::new(7, BUCKET, Norm::Euclidean, 1),
        |v, said| within_a_step(v, said, |bucket| bucket.iter().map(|v| v * v).sum::<f64>().sqrt() / 7.0),
    )?);
    told(vectors.encoding_row("8 bits, min-max, encode", MinMax::default(), |v, said| {
        let range =
            |bucket: &[f64]| bucket.iter().fold([0.0_f64; 2], |[low, high], v| [low.min(*v), high.max(*v)]);
        within_a_step(v, said, |bucket| {
            let [low, high] = range(bucket);
            0.51 * (high - low) / 255.0
        })
    })?);
    for levels in [1, 7] {
        vectors.elias_rows(levels, told)?;
    }
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
        let mut feedback = DeferredFeedback::new(n, quantiser).map_err(refused(name))?;
        let mut said = vec![0.0; n];
        let message = feedback.compress(&self.gradient).map_err(refused(name))?;
        let message = Encoded::new(format, n, message).map_err(refused(name))?;
        message.decode_into(&mut said).map_err(refused(name))?;
        self.verify(name, &said, feedback.residual())?;
        let kernel = |vectors: &mut Self| feedback.compress(&vectors.gradient).map(drop);
        let subject = self.subject(Group::Quantise, name, 12, "acc").at_most(bar);
        self.row(subject, Self::acc, kernel)
    }

    fn bucket_row<Q: Bucketed>(&mut self, name: &str, quantiser: Q) -> Result<Row> {
        let feedback = BucketFeedback::new(self.gradient.len(), quantiser).map_err(refused(name))?;
        let compress = BucketFeedback::compress;
        self.feedback_row(name, feedback, compress, BucketFeedback::residual, BucketFeedback::quantiser)
    }

    /// Feedback around a quantiser, by its methods.
    fn feedback_row<F, Q: Quantiser>(
        &mut self,
        name: &str,
        mut feedback: F,
        compress: fn(&mut F, &[f32], &mut Vec<u8>) -> Done,
        residual: fn(&F) -> &[f32],
        quantiser: fn(&F) -> &Q,
    ) -> Result<Row> {
        let name = format!("{name}, with feedback");
        let (mut said, mut bytes) = (vec![0.0; self.gradient.len()], Vec::new());
        compress(&mut feedback, &self.gradient, &mut bytes).map_err(refused(&name))?;
        let message =
            Encoded::new(quantiser(&feedback).format(), said.len(), &bytes).map_err(refused(&name))?;
        message.decode_into(&mut said).map_err(refused(&name))?;
        self.verify(&name, &said, residual(&feedback))?;
        let kernel = |vectors: &mut Self| compress(&mut feedback, &vectors.gradient, &mut bytes);
        let subject = self.subject(Group::Quantise, name, 12, "acc");
        self.row(subject, Self::acc, kernel)
    }

    fn encoding_row(
        &mut self,
        name: &str,
        mut quantiser: impl Quantiser,
        is_right: impl Fn(&[f32], &[f32]) -> bool,
    ) -> Result<Row> {
        let (mut bytes, mut said) = (Vec::new(), vec![0.0; self.gradient.len()]);
        quantiser.encode(&self.gradient, &mut bytes).map_err(refused(name))?;
        let message = Encoded::new(quantiser.format(), said.len(), &bytes).map_err(refused(name))?;
        message.decode_into(&mut said).map_err(refused(name))?;
        check(is_right(&self.gradient, &said), name, "a value is not what a plain loop makes of it")?;
        let subject = self.subject(Group::Quantise, name, 4, "acc");
        self.row(subject, Self::acc, |vectors| quantiser.encode(&vectors.gradient, &mut bytes))
    }

    /// The Elias codes of a QSGD message, and their decoding.
    fn elias_rows(&mut self, levels: u8, told: &mut impl FnMut(Row)) -> Result<()> {
        let name = format!("Elias codes of QSGD, {levels} level{}", if levels > 1 { "s" } else { "" });
        let (n, mut message) = (self.gradient.len(), Vec::new());
        let mut quantiser = Qsgd::new(levels, BUCKET, Norm::Euclidean, 1);
        quantiser.encode(&self.gradient, &mut message).map_err(refused(&name))?;
        let (mut bytes, mut again) = (Vec::new(), Vec::new());
        elias::encode(&message, n, &mut bytes).map_err(refused(&name))?;
        elias::decode(&bytes, n, &mut again).map_err(refused(&name))?;
        check(again == message, &name, "what is decoded is not what was encoded")?;
        let size = bytes.len() as f64 / n as f64;
        let subject = |way: &str| {
            let subject = Subject::new(Group::Quantise, format!("{name}: {way}"), n, 0, "acc");
            Subject {
                bytes: message.len() + bytes.len(),
                entries: Some(n),
                bytes_an_entry: Some(size),
                ..subject
            }
        };
        let (encoding, decoding) = (subject("encode"), subject("decode"));
        told(self.row(encoding, Self::acc, |_| elias::encode(black_box(&message), n, &mut bytes))?);
        told(self.row(decoding, Self::acc, |_| elias::decode(black_box(&bytes), n, &mut again))?);
        Ok(())
    }

    /// A message added to a dense vector.
    fn adding_row(&mut self, name: &str, mut quantiser: impl Quantiser) -> Result<Row> {
        let (mut bytes, mut into) = (Vec::new(), self.gradient.clone());
        quantiser.encode(&self.gradient, &mut bytes).map_err(refused(name))?;
        let message = Encoded::new(quantiser.format(), into.len(), &bytes).map_err(refused(name))?;
        let mut said = vec![0.0; into.len()];
        message.decode_into(&mut said).map_err(refused(name))?;
        said.iter_mut().zip(&into).for_each(|(said, into)| *said += into);
        message.add_to(1.0, &mut into).map_err(refused(name))?;
        check(into == said, name, "a sum is not that of a plain loop")?;
        let subject = self.subject(Group::Quantise, name, 8, "acc");
        self.row(subject, Self::acc, |_| message.add_to(1.0, &mut into))
    }

    /// The votes of eight ranks, and their majority.
    fn vote_row(&mut self) -> Result<Row> {
        let name = "signs, a vote of 8";
        let (n, mut bytes) = (self.gradient.len(), Vec::new());
        encode_signs(&self.gradient, &mut bytes).map_err(refused(name))?;
        let message = Signs::new(n, &bytes).map_err(refused(name))?;
        let (mut votes, mut signs) = (Votes::new(n), vec![0.0; n]);
        let mut vote = |signs: &mut [f32]| {
            votes.clear();
            (0..VOTERS).try_for_each(|_| votes.add(message))?;
            votes.majority(signs)
        };
        vote(&mut signs).map_err(refused(name))?;
        let is_right = signs
            .iter()
            .zip(&self.gradient)
            .all(|(sign, g)| *sign == if *g == 0.0 { 0.0 } else { g.signum() });
        check(is_right, name, "all agree, and the majority has another sign")?;
        let subject = self.subject(Group::Quantise, name, 4, "acc");
        self.row(subject, Self::acc, |_| vote(&mut signs))
    }

    /// Checks that the decoded message plus the residual is the gradient, up to rounding.
    fn verify(&self, name: &str, said: &[f32], stays: &[f32]) -> Result<()> {
        let mut all = said.iter().zip(stays).zip(&self.gradient);
        let bound = |said: f32, g: f32| 2.0 * f64::from(f32::EPSILON) * f64::from(said.abs() + g.abs());
        let is_whole = all.all(|((&said, &stays), &g)| {
            (f64::from(said) + f64::from(stays) - f64::from(g)).abs() <= bound(said, g)
        });
        check(is_whole, name, "what is sent and what stays is not what came in")
    }
}

/// Whether values become at most two magnitudes with their signs, larger values get no smaller magnitude, and
/// each magnitude is the mean of the values it represents.
fn means_by_threshold(values: &[f32], said: &[f32]) -> bool {
    let mut magnitudes: Vec<(f32, f64, usize, [f32; 2])> = Vec::new();
    for (value, said) in values.iter().map(|v| v.abs()).zip(said.iter().map(|said| said.abs())) {
        let known = magnitudes.iter().position(|of| of.0 == said).unwrap_or(magnitudes.len());
        if known == magnitudes.len() {
            if known == 2 {
                return false;
            }
            magnitudes.push((said, 0.0, 0, [f32::INFINITY, 0.0]));
        }
        let (_, sum, count, [least, most]) = &mut magnitudes[known];
        *sum += f64::from(value);
        *count += 1;
        (*least, *most) = (least.min(value), most.max(value));
    }
    magnitudes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let is_mean = |&(said, sum, count, _): &(f32, f64, usize, [f32; 2])| {
        (f64::from(said) - sum / count as f64).abs() <= 1e-5 * f64::from(said)
    };
    let signs_agree =
        values.iter().zip(said).all(|(v, said)| v.is_sign_negative() == said.is_sign_negative());
    signs_agree
        && magnitudes.iter().all(is_mean)
        && magnitudes.windows(2).all(|pair| pair[0].3[1] <= pair[1].3[0])
}

/// Whether each decoded value is within a step of its bucket.
fn within_a_step(values: &[f32], said: &[f32], step: impl Fn(&[f64]) -> f64) -> bool {
    values.chunks(BUCKET as usize).zip(said.chunks(BUCKET as usize)).all(|(values, said)| {
        let wide: Vec<f64> = values.iter().map(|v| f64::from(*v)).collect();
        let step = 1.0001 * step(&wide);
        wide.iter().zip(said).all(|(v, said)| (v - f64::from(*said)).abs() <= step)
    })
}
