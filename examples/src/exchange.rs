//! The training loop's [`Exchange`] by the library: one policy for each tensor, all of one method.

use crate::method::Method;
use crate::model::Model;
use crate::trainer::{BoxError, Exchange};
use brevity::compress::quantise::{Magnitude, Values};
use brevity::{GradientExchange, Group, Policy, PutBack, ReduceOp};
use brevity_bench::timeline::Timeline;

/// The momentum of signum's votes, and that of DGC before it selects.
const SIGNUM_MOMENTUM: f32 = 0.9;
const DGC_MOMENTUM: f32 = 0.9;

/// The levels of qsgd: 4 bits a value, as in the paper's experiments (Alistarh et al., NeurIPS 2017).
const QSGD_LEVELS: u8 = 7;

/// How gradients are averaged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Way {
    /// The method.
    pub method: Method,
    /// The share of entries of methods that leave some out.
    pub density: f64,
    /// The rank of factors.
    pub rank: usize,
    /// The seed of what is random.
    pub seed: u64,
}

/// A rank of a [`Group`] that averages by one method.
pub struct GroupExchange {
    exchange: GradientExchange,
    method: Method,
    steps: usize,
    timeline: Option<Timeline>,
    bytes_before: u64,
}

impl GroupExchange {
    /// An exchange for the parameters of `model`. Matrices travel by the method; biases are small and travel
    /// dense, except by signum, whose steps have another size.
    ///
    /// # Errors
    /// If the library refuses the policy.
    pub fn new(group: &Group, model: &Model, way: Way) -> brevity::Result<Self> {
        let mut builder = GradientExchange::builder(group);
        for (name, shape) in model.parameters() {
            let is_matrix = shape.len() > 1;
            builder = builder.tensor(name, shape, way.policy(is_matrix));
        }
        let exchange = builder.build()?;
        let bytes_before = bytes_out(group);
        Ok(Self { exchange, method: way.method, steps: 0, timeline: None, bytes_before })
    }

    /// Adds its steps to a timeline.
    #[must_use]
    pub fn traced(self, timeline: Option<Timeline>) -> Self {
        Self { timeline, ..self }
    }

    /// The timeline with its steps.
    pub fn into_timeline(self) -> Option<Timeline> {
        self.timeline
    }
}

impl Way {
    /// The policy of a tensor.
    pub fn policy(self, is_matrix: bool) -> Policy {
        match self.method {
            Method::Signum => Policy::signum(SIGNUM_MOMENTUM),
            _ if !is_matrix => Policy::dense(),
            Method::Topk => Policy::topk(self.density),
            Method::Gtopk => Policy::gtopk(self.density),
            Method::GtopkPublished => Policy::gtopk(self.density).put_back(PutBack::Published),
            Method::GtopkMergerKeeps => Policy::gtopk(self.density).put_back(PutBack::MergerKeeps),
            Method::Oktopk => Policy::oktopk(self.density),
            Method::RandomK => Policy::random_k(self.density),
            Method::RandomBlock => Policy::random_block(self.density),
            Method::Lowrank => Policy::low_rank(self.rank),
            Method::Dgc => Policy::topk(self.density).momentum(DGC_MOMENTUM),
            Method::EightBit => Policy::quantised(Values::EightBit),
            Method::TwoBit => Policy::quantised(Values::TwoBit(Magnitude::Mean)),
            Method::OneBit => Policy::quantised(Values::OneBit(Magnitude::Mean)),
            Method::Qsgd => Policy::quantised(Values::Qsgd(QSGD_LEVELS)),
            Method::Terngrad => Policy::quantised(Values::Ternary),
            Method::Dense => Policy::dense(),
        }
    }
}

impl Exchange for GroupExchange {
    fn rank(&self) -> usize {
        self.exchange.group().rank() as usize
    }

    fn world_size(&self) -> usize {
        self.exchange.group().world_size() as usize
    }

    fn average(&mut self, gradients: &mut [Vec<f32>]) -> Result<(), BoxError> {
        let report = self.exchange.begin()?.finish(gradients)?;
        self.steps += 1;
        if let Some(timeline) = &mut self.timeline {
            timeline.add(&format!("{}, step {}", self.method, self.steps), &self.exchange, &report);
        }
        Ok(())
    }

    fn sum(&mut self, values: &mut [f64]) -> Result<(), BoxError> {
        Ok(self.exchange.group().all_reduce(values, ReduceOp::Sum).map_err(brevity::Error::from)?)
    }

    fn bytes_sent(&self) -> u64 {
        bytes_out(self.exchange.group()) - self.bytes_before
    }
}

/// Bytes that have left this rank, by messages and by memory that ranks of one host share.
fn bytes_out(group: &Group) -> u64 {
    let statistics = group.statistics();
    statistics.bytes_sent + statistics.bytes_shared
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::digits;
    use crate::in_process;
    use crate::progress::Progress;
    use crate::trainer::{Run, Settings, train};
    use brevity::transport::local;

    const RANKS: usize = 3;

    fn settings() -> Settings {
        Settings {
            epochs: 6,
            batch_size: 8,
            hidden: vec![32],
            learning_rate: 0.2,
            momentum: 0.0,
            seed: 4,
            evaluations: 3,
        }
    }

    /// The runs of all ranks by the library, over the local transport.
    fn runs(method: Method) -> Vec<Run> {
        let learning_rate = match method {
            Method::Signum => 0.002,
            Method::Dgc => 0.02,
            _ => 0.2,
        };
        let way = Way { method, density: 0.02, rank: 1, seed: 4 };
        let threads: Vec<_> = local::world(RANKS as u32)
            .into_iter()
            .map(|transport| {
                std::thread::spawn(move || {
                    let group = Group::new(Box::new(transport), brevity::Settings::default());
                    let (settings, dataset) = (Settings { learning_rate, ..settings() }, digits::load());
                    let model = settings.model(&dataset).unwrap();
                    let mut exchange = GroupExchange::new(&group, &model, way).unwrap();
                    let name = method.to_string();
                    train(&name, &dataset, &settings, &mut exchange, &Progress::hidden()).unwrap()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }

    fn exact_run() -> Run {
        let threads: Vec<_> = in_process::ranks(RANKS)
            .into_iter()
            .map(|mut rank| {
                std::thread::spawn(move || {
                    train("dense", &digits::load(), &settings(), &mut rank, &Progress::hidden()).unwrap()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).next().unwrap()
    }

    #[test]
    fn dense_training_follows_the_exact_mean() {
        let exact = exact_run();
        for run in runs(Method::Dense) {
            for (point, expected) in run.curve.iter().zip(&exact.curve) {
                assert!((point.loss - expected.loss).abs() < 1e-3, "{point:?}, {expected:?}");
            }
            assert!((run.test_accuracy - exact.test_accuracy).abs() < 0.01);
        }
    }

    #[test]
    fn compressed_training_sends_less_and_learns_as_much() {
        let exact = exact_run();
        let dense = runs(Method::Dense)[0].bytes_per_rank_step;
        let few_bits = [Method::EightBit, Method::TwoBit, Method::OneBit, Method::Signum];
        let of_papers = [Method::Oktopk, Method::RandomK, Method::Qsgd, Method::Terngrad];
        let others = few_bits.into_iter().chain(of_papers);
        for method in [Method::Topk, Method::Gtopk, Method::Lowrank, Method::Dgc].into_iter().chain(others) {
            let runs = runs(method);
            let losses = |run: &Run| run.curve.iter().map(|point| point.loss).collect::<Vec<_>>();
            assert!(runs.iter().all(|run| losses(run) == losses(&runs[0])), "{method}");
            let run = &runs[0];
            assert!(run.bytes_per_rank_step < dense / 3.0, "{method}: {}", run.bytes_per_rank_step);
            assert!(run.test_accuracy > exact.test_accuracy - 0.03, "{method}: {}", run.test_accuracy);
        }
    }
}
