//! Error feedback around compressors, momentum before and after it, and saved state, over `r += g` or a copy.

use brevity::compress::SparseVec;
use brevity::compress::feedback::{ErrorFeedback, Quantised, Rule, TopK};
use brevity::compress::momentum::{Clip, MomentumCorrection, PostCompression, SparsificationAware};
use brevity::compress::quantise::Sign;
use brevity::compress::state::{from_bytes, to_bytes};

use super::gradient_drop::{SHARES, entries};
use super::vectors::{Vectors, normal};
use super::{Extent, Group, Row, Subject, refused};
use crate::{Error, Result};

/// What momentum keeps of a step.
const MOMENTUM: f32 = 0.9;

/// A learning rate.
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
    told(vectors.correction_row("momentum correction", None)?);
    // A bound that clips.
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
        let mut step = |gradient: &[f32]| {
            feedback.compress(gradient, &mut message)?;
            feedback.settle_sparse(message.view())
        };
        step(&self.gradient).map_err(refused(&name))?;
        let kernel = |vectors: &mut Self| step(&vectors.gradient).unwrap_or_default();
        let row = self.rotating_row(subject, Self::acc, kernel);
        let sent_and_left = message.values().iter().chain(feedback.residual().values()).all(|value| value.is_finite());
        if sent_and_left { Ok(row) } else { Err(Error::contestant(name, "what is left is not finite")) }
    }

    fn sign_row(&mut self, rule: Rule) -> Result<Row> {
        let name = format!("error feedback, {} rule, 1 bit", name_of(rule));
        let subject = self.subject(Group::Feedback, name.clone(), 12, "acc");
        let n = self.gradient.len();
        let mut feedback = ErrorFeedback::with_rule(n, Quantised(Sign::default()), rule);
        let (mut message, average) = (Vec::new(), vec![0.5; n]);
        let mut step = |gradient: &[f32]| {
            feedback.compress(gradient, &mut message)?;
            feedback.settle(&average)
        };
        step(&self.gradient).map_err(refused(&name))?;
        let kernel = |vectors: &mut Self| step(&vectors.gradient).unwrap_or_default();
        Ok(self.rotating_row(subject, Self::acc, kernel))
    }

    fn correction_row(&mut self, name: &str, clip: Option<Clip>) -> Result<Row> {
        let (top_k, mut message, subject) = self.selection(name);
        let correction = MomentumCorrection::new(self.gradient.len(), top_k, MOMENTUM).map_err(refused(name))?;
        let mut correction = match clip {
            Some(clip) => correction.with_clip(clip),
            None => correction,
        };
        correction.compress(&self.gradient[..], &mut message).map_err(refused(name))?;
        let kernel = |vectors: &mut Self| correction.compress(&vectors.gradient[..], &mut message).unwrap_or_default();
        // The gradient is read, both vectors are read and written.
        let subject = Subject { bytes: 20 * self.gradient.len(), ..subject };
        Ok(self.rotating_row(subject, Self::acc, kernel))
    }

    fn aware_row(&mut self, name: &str, rate: f32) -> Result<Row> {
        let (top_k, mut message, subject) = self.selection(name);
        let mut momentum = SparsificationAware::new(self.gradient.len(), top_k, MOMENTUM).map_err(refused(name))?;
        momentum.compress(&self.gradient[..], rate, &mut message).map_err(refused(name))?;
        let kernel =
            |vectors: &mut Self| momentum.compress(&vectors.gradient[..], rate, &mut message).unwrap_or_default();
        Ok(self.rotating_row(subject, Self::acc, kernel))
    }

    fn post_compression_row(&mut self) -> Result<Row> {
        let name = "momentum after aggregation";
        let n = self.gradient.len();
        let mut momentum = PostCompression::new(n, MOMENTUM).map_err(refused(name))?;
        let mut x = normal(n, 8);
        momentum.apply(&self.gradient, RATE, &mut x).map_err(refused(name))?;
        let kernel = |vectors: &mut Self| momentum.apply(&vectors.gradient, RATE, &mut x).unwrap_or_default();
        let subject = self.subject(Group::Feedback, name, 20, "acc");
        Ok(self.rotating_row(subject, Self::acc, kernel))
    }

    fn state_rows(&mut self, told: &mut impl FnMut(Row)) -> Result<()> {
        let mut feedback = ErrorFeedback::new(self.gradient.len(), TopK::new(1));
        feedback.residual_mut().load(&self.gradient).map_err(refused("saved state"))?;
        let mut bytes = to_bytes(&feedback);
        from_bytes(&mut feedback, &bytes).map_err(refused("saved state"))?;
        if feedback.residual().values() != &self.gradient[..] {
            return Err(Error::contestant("saved state", "what is loaded is not what was saved"));
        }
        let subject = self.subject(Group::Feedback, "saving a residual", 8, "copy");
        told(self.row(subject, Self::copy, |_| bytes = to_bytes(&feedback)));
        let subject = self.subject(Group::Feedback, "loading a residual", 8, "copy");
        told(self.row(subject, Self::copy, |_| from_bytes(&mut feedback, &bytes).unwrap_or_default()));
        Ok(())
    }
}

fn name_of(rule: Rule) -> &'static str {
    match rule {
        Rule::Own => "own",
        Rule::Global => "global",
    }
}
