//! Error feedback around compressors, momentum before and after it, and saved state, compared with `r += g`
//! or a copy.

use brevity::compress::SparseVec;
use brevity::compress::feedback::{ErrorFeedback, NonZeroBlocks, Quantised, Rule, TopK};
use brevity::compress::momentum::{Clip, MomentumCorrection, PostCompression, SparsificationAware};
use brevity::compress::quantise::{Encoded, Quantiser, Sign};
use brevity::compress::select::{BLOCK_PLACES, Blocks};
use brevity::compress::state::{from_bytes, to_bytes};

use super::gradient_drop::{SHARES, entries};
use super::vectors::{Vectors, normal};
use super::{Extent, Group, Row, Subject, check, plain, refused};
use crate::Result;

/// The momentum factor.
const MOMENTUM: f32 = 0.9;

/// The learning rate.
const RATE: f32 = 0.1;

/// Measures all rows.
pub(super) fn measure(extent: Extent, told: &mut impl FnMut(Row)) -> Result<()> {
    let mut vectors = Vectors::new(extent);
    for rule in [Rule::Own, Rule::Global] {
        told(vectors.top_k_row(rule)?);
    }
    for rule in [Rule::Own, Rule::Global] {
        told(vectors.sign_row(rule)?);
    }
    told(vectors.blocks_row()?);
    told(vectors.correction_row("momentum correction", None)?);
    // A limit that clips.
    let clip = Clip::new(1.0, 4).map_err(refused("clipping"))?;
    told(vectors.correction_row("momentum correction, clipped", Some(clip))?);
    told(vectors.aware_row("SAMomentum, rate 1", 1.0)?);
    told(vectors.aware_row("SAMomentum, rate 0.1", RATE)?);
    told(vectors.post_compression_row()?);
    vectors.state_rows(told)
}

impl Vectors {
    fn selection(&self, name: &str) -> (TopK, SparseVec, Subject) {
        let [share, _] = SHARES;
        let n = self.gradient.len();
        let subject = Subject { density: Some(share), ..self.subject(Group::Feedback, name, 12, "acc") };
        (TopK::new(entries(share, n)), SparseVec::new(n), subject)
    }

    fn top_k_row(&mut self, rule: Rule) -> Result<Row> {
        let name = format!("error feedback, {} rule, top k", name_of(rule));
        let (top_k, mut message, subject) = self.selection(&name);
        let mut feedback = ErrorFeedback::with_rule(self.gradient.len(), top_k, rule);
        let step = |feedback: &mut ErrorFeedback<TopK>, gradient: &[f32], message: &mut SparseVec| {
            feedback.compress(gradient, message)?;
            feedback.settle_sparse(message.view())
        };
        step(&mut feedback, &self.gradient, &mut message).map_err(refused(&name))?;
        self.verify_top_k(&name, &message, 1.0)?;
        let mut stays = feedback.residual().values().to_vec();
        // By the global rule, the average that comes back is what was sent.
        message.add_to(&mut stays);
        check(stays == self.gradient, &name, "what is sent and what stays is not what came in")?;
        let kernel = |vectors: &mut Self| step(&mut feedback, &vectors.gradient, &mut message);
        self.rotating_row(subject, Self::acc, kernel)
    }

    /// Checks that a first message has the largest entries of the gradient, times a factor.
    fn verify_top_k(&self, name: &str, message: &SparseVec, factor: f32) -> Result<()> {
        let largest = plain::top_k(self.gradient.iter().copied(), entries(SHARES[0], self.gradient.len()));
        let is_said = message.iter().all(|(index, value)| {
            let expected = factor * self.gradient[index as usize];
            (value - expected).abs() <= 2.0 * f32::EPSILON * expected.abs()
        });
        check(message.indices() == largest && is_said, name, "the largest entries are others")
    }

    fn sign_row(&mut self, rule: Rule) -> Result<Row> {
        let name = format!("error feedback, {} rule, 1 bit", name_of(rule));
        let subject = self.subject(Group::Feedback, name.clone(), 12, "acc");
        let n = self.gradient.len();
        let quantised = Quantised::new(n, Sign::default()).map_err(refused(&name))?;
        let mut feedback = ErrorFeedback::with_rule(n, quantised, rule);
        let (mut message, average) = (Vec::new(), vec![0.5; n]);
        let step = |feedback: &mut ErrorFeedback<_>, gradient: &[f32], message: &mut Vec<u8>| {
            feedback.compress(gradient, message)?;
            feedback.settle(&average)
        };
        step(&mut feedback, &self.gradient, &mut message).map_err(refused(&name))?;
        let mut said = average.clone();
        if rule == Rule::Own {
            let message = Encoded::new(Sign::default().format(), n, &message).map_err(refused(&name))?;
            message.decode_into(&mut said).map_err(refused(&name))?;
        }
        let mut stays = feedback.residual().values().iter().zip(&said);
        let is_rest =
            self.gradient.iter().all(|g| stays.next().is_some_and(|(stays, said)| *stays == g - said));
        check(is_rest, &name, "what stays is not what came in less what was said")?;
        let kernel = |vectors: &mut Self| step(&mut feedback, &vectors.gradient, &mut message);
        self.rotating_row(subject, Self::acc, kernel)
    }

    /// Feedback around the selection of non-zero blocks.
    fn blocks_row(&mut self) -> Result<Row> {
        let name = "error feedback, own rule, non-zero blocks";
        let n = self.gradient.len();
        let (mut feedback, mut blocks) = (ErrorFeedback::new(n, NonZeroBlocks), Blocks::new());
        let dense = self.gradient.clone();
        // Like embeddings: one block in twenty is not zero.
        self.gradient.chunks_mut(BLOCK_PLACES).enumerate().for_each(|(b, block)| {
            if b % 20 > 0 {
                block.fill(0.0);
            }
        });
        feedback.compress(&self.gradient[..], &mut blocks).map_err(refused(name))?;
        let mut said = vec![0.0; n];
        blocks.add_scaled_to(1.0, &mut said).map_err(refused(name))?;
        let is_all = said == self.gradient && feedback.residual().values().iter().all(|r| *r == 0.0);
        check(is_all, name, "blocks lose something")?;
        let subject = self.subject(Group::Feedback, name, 12, "acc");
        let row =
            self.row(subject, Self::acc, |vectors| feedback.compress(&vectors.gradient[..], &mut blocks));
        self.gradient = dense;
        row
    }

    fn correction_row(&mut self, name: &str, clip: Option<Clip>) -> Result<Row> {
        let (top_k, mut message, subject) = self.selection(name);
        let correction =
            MomentumCorrection::new(self.gradient.len(), top_k, MOMENTUM).map_err(refused(name))?;
        let mut correction = match clip {
            Some(clip) => correction.with_clip(clip),
            None => correction,
        };
        correction.compress(&self.gradient[..], &mut message).map_err(refused(name))?;
        let square = self.gradient.iter().map(|g| f64::from(*g) * f64::from(*g)).sum();
        self.verify_top_k(name, &message, clip.map_or(1.0, |clip| clip.factor(square)))?;
        let sent = message.indices().iter().all(|i| correction.accumulated()[*i as usize] == 0.0);
        check(sent, name, "what is sent does not begin anew")?;
        let kernel = |vectors: &mut Self| correction.compress(&vectors.gradient[..], &mut message);
        // The gradient is read; both vectors are read and written.
        let subject = Subject { bytes: 20 * self.gradient.len(), ..subject };
        self.rotating_row(subject, Self::acc, kernel)
    }

    fn aware_row(&mut self, name: &str, rate: f32) -> Result<Row> {
        let (top_k, mut message, subject) = self.selection(name);
        let mut momentum =
            SparsificationAware::new(self.gradient.len(), top_k, MOMENTUM).map_err(refused(name))?;
        momentum.compress(&self.gradient[..], rate, &mut message).map_err(refused(name))?;
        self.verify_top_k(name, &message, rate)?;
        let kernel = |vectors: &mut Self| momentum.compress(&vectors.gradient[..], rate, &mut message);
        self.rotating_row(subject, Self::acc, kernel)
    }

    fn post_compression_row(&mut self) -> Result<Row> {
        let name = "momentum after aggregation";
        let n = self.gradient.len();
        let mut momentum = PostCompression::new(n, MOMENTUM).map_err(refused(name))?;
        let mut x = normal(n, 8);
        let before = x.clone();
        momentum.apply(&self.gradient, RATE, &mut x).map_err(refused(name))?;
        // In the first step, the momentum is the update.
        let mut moved = before.iter().zip(&x).zip(&self.gradient);
        let is_moved = moved
            .all(|((before, x), g)| (before - 2.0 * RATE * g - x).abs() <= 1e-6 * (before.abs() + g.abs()));
        check(is_moved, name, "the first step is not twice the update")?;
        let kernel = |vectors: &mut Self| momentum.apply(&vectors.gradient, RATE, &mut x);
        let subject = self.subject(Group::Feedback, name, 20, "acc");
        self.rotating_row(subject, Self::acc, kernel)
    }

    fn state_rows(&mut self, told: &mut impl FnMut(Row)) -> Result<()> {
        let mut feedback = ErrorFeedback::new(self.gradient.len(), TopK::new(1));
        feedback.residual_mut().load(&self.gradient).map_err(refused("saved state"))?;
        let mut bytes = to_bytes(&feedback);
        from_bytes(&mut feedback, &bytes).map_err(refused("saved state"))?;
        let is_back = feedback.residual().values() == &self.gradient[..];
        check(is_back, "saved state", "what is loaded is not what was saved")?;
        let subject = self.subject(Group::Feedback, "saving a residual", 8, "copy");
        told(self.row(subject, Self::copy, |_| bytes = to_bytes(&feedback))?);
        let subject = self.subject(Group::Feedback, "loading a residual", 8, "copy");
        told(self.row(subject, Self::copy, |_| from_bytes(&mut feedback, &bytes))?);
        Ok(())
    }
}

fn name_of(rule: Rule) -> &'static str {
    match rule {
        Rule::Own => "own",
        Rule::Global => "global",
    }
}
