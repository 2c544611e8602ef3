//! Thresholds of sparse tensors, against references of all ranks.

use brevity::collectives::Error as Collective;
use brevity::compress::generator::Generator;
use brevity::compress::select::{SampledScratch, sampled_top_k};
use brevity::compress::{Density, SparseVec};
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{Error, GradientExchange, Group, Policy, Settings, Threshold};
use brevity_tests::{on_local, oracle};

const COUNT: usize = 400;
const DENSITY: f64 = 0.05;
const SEED: u64 = 7;
const STEPS: u32 = 70;

const THRESHOLDS: [Threshold; 4] =
    [Threshold::Exact, Threshold::Sampled, Threshold::Adaptive, Threshold::Fixed(150.0)];

fn on_sim<R, F: Future<Output = R>>(world_size: u32, body: impl Fn(Group) -> F) -> Vec<R> {
    let cluster = Cluster::new(world_size, Links::new(1e-5, 1e-9));
    run(cluster, |transport| body(Group::new(transport, Settings::default()))).unwrap()
}

fn built(group: &Group, policy: Policy) -> GradientExchange {
    GradientExchange::builder(group).seed(SEED).tensor("weight", [COUNT], policy).build().unwrap()
}

fn gradient(rank: u32, step: u32) -> Vec<f32> {
    let scale = 1.0 + (step % 5) as f32;
    oracle::vector(rank + 1000 * step, COUNT).into_iter().map(|value| scale * value).collect()
}

async fn step(exchange: GradientExchange, gradient: Vec<f32>) -> (GradientExchange, Vec<f32>) {
    let ((exchange, mut averages), outcome) = exchange.start(vec![gradient]).await;
    outcome.unwrap();
    (exchange, averages.remove(0))
}

/// One rank's selection, in the plainest way.
#[derive(Clone)]
struct Reference {
    threshold: Threshold,
    residual: Vec<f32>,
    /// Of the adaptive one: 0 before the first.
    last: f32,
}

impl Reference {
    fn select(&mut self, gradient: &[f32], step: u32) -> Vec<(usize, f32)> {
        self.residual = oracle::sum(&[self.residual.clone(), gradient.to_vec()]);
        let (k, residual) = (Density::new(DENSITY).unwrap().entries(COUNT), &self.residual);
        let reaching = |tau: f32| -> Vec<usize> {
            (0..COUNT).filter(|index| residual[*index].abs() >= tau && residual[*index] != 0.0).collect()
        };
        let largest =
            || -> Vec<usize> { oracle::top_k(residual, k).into_keys().map(|i| i as usize).collect() };
        let chosen = match self.threshold {
            Threshold::Sampled => {
                let mut out = SparseVec::new(0);
                let generator = &mut Generator::for_stream(SEED, step.into());
                sampled_top_k(residual, k, 2 * k, generator, &mut out, &mut SampledScratch::new()).unwrap();
                out.indices().iter().map(|index| *index as usize).collect()
            }
            Threshold::Fixed(tau) if reaching(tau).len() <= k => reaching(tau),
            Threshold::Adaptive => {
                let found = reaching(self.last);
                if self.last > 0.0
                    && !step.is_multiple_of(32)
                    && (k.div_ceil(2)..=2 * k).contains(&found.len())
                {
                    found
                } else {
                    let found = largest();
                    self.last = found.iter().map(|index| residual[*index].abs()).fold(f32::MAX, f32::min);
                    found
                }
            }
            _ => largest(),
        };
        chosen.into_iter().map(|index| (index, std::mem::take(&mut self.residual[index]))).collect()
    }
}

#[test]
fn each_rank_selects_by_its_threshold() {
    for (threshold, world_size) in THRESHOLDS.into_iter().flat_map(|t| [1, 2, 3, 5, 8].map(|size| (t, size)))
    {
        let found = on_sim(world_size, move |group| async move {
            let policy = Policy::topk(DENSITY).threshold(threshold);
            let (mut exchange, mut averages) = (built(&group, policy), Vec::new());
            for number in 0..STEPS {
                let (after, average) = step(exchange, gradient(group.rank(), number)).await;
                exchange = after;
                averages.push(average);
            }
            (averages, exchange.residual("weight").unwrap())
        });
        let reference = Reference { threshold, residual: vec![0.0; COUNT], last: 0.0 };
        let mut ranks = vec![reference; world_size as usize];
        let mut sizes = Vec::new();
        for number in 0..STEPS {
            let mut sum = vec![0.0; COUNT];
            for (rank, reference) in (0..).zip(&mut ranks) {
                let selected = reference.select(&gradient(rank, number), number);
                sizes.push(selected.len());
                selected.into_iter().for_each(|(index, value)| sum[index] += value);
            }
            sum.iter_mut().for_each(|sum| *sum /= world_size as f32);
            for (averages, _) in &found {
                assert!(averages[number as usize] == sum, "{threshold}, P = {world_size}, step {number}");
            }
        }
        for ((_, left), reference) in found.iter().zip(&ranks) {
            assert!(*left == reference.residual, "{threshold}, P = {world_size}");
        }
        let is_exact = sizes.iter().all(|size| *size == 20);
        assert_eq!(is_exact, threshold == Threshold::Exact, "{threshold}: {sizes:?}");
    }
}

/// Whatever the method and the threshold, what is delivered and what is left are what was given.
#[test]
fn mass_is_conserved_with_every_threshold() {
    let methods: [fn(f64) -> Policy; 3] = [Policy::topk, Policy::gtopk, Policy::oktopk];
    for (method, threshold) in methods.into_iter().flat_map(|method| THRESHOLDS.map(|t| (method, t))) {
        let policy = method(DENSITY).threshold(threshold);
        let ranks = on_local(4, move |group| {
            let (mut exchange, mut delivered) = (built(group, policy), vec![0.0; COUNT]);
            for number in 0..40 {
                let mut gradients = [gradient(group.rank(), number)];
                exchange.average(&mut gradients).unwrap();
                delivered.iter_mut().zip(&gradients[0]).for_each(|(all, average)| *all += 4.0 * average);
            }
            (delivered, exchange.residual("weight").unwrap())
        });
        let given: Vec<_> = (0..4).flat_map(|rank| (0..40).map(move |step| gradient(rank, step))).collect();
        let parts = ranks.iter().map(|(_, left)| left.clone()).chain([ranks[0].0.clone()]);
        assert_eq!(oracle::sum(&parts.collect::<Vec<_>>()), oracle::sum(&given), "{policy}");
        assert!(ranks.iter().all(|(delivered, _)| *delivered == ranks[0].0), "{policy}");
    }
}

#[test]
fn residuals_are_bounded_over_a_thousand_steps() {
    let methods: [fn(f64) -> Policy; 3] = [Policy::topk, Policy::gtopk, Policy::oktopk];
    for (method, threshold) in methods.into_iter().flat_map(|method| THRESHOLDS.map(|t| (method, t))) {
        let policy = method(DENSITY).threshold(threshold);
        let largest = on_sim(2, move |group| async move {
            let (mut exchange, mut largest) = (built(&group, policy), [0.0_f32; 2]);
            for number in 0..1000 {
                let drift = (0..COUNT).map(|index| 20.0 + index as f32 / 20.0).collect();
                let given = oracle::sum(&[drift, oracle::vector(group.rank() + 2 * number, COUNT)]);
                exchange = step(exchange, given).await.0;
                let left = exchange.residual("weight").unwrap();
                let most = left.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
                let half = &mut largest[number as usize / 500];
                *half = half.max(most);
            }
            largest
        });
        for [first, second] in largest {
            assert!(second < 1.5 * first && second < 40.0 * 20.0 * 4.0, "{policy}: {first}, then {second}");
        }
    }
}

/// A restart changes no bit, and leaves thresholds as they were.
#[test]
fn thresholds_are_saved() {
    for (threshold, momentum) in THRESHOLDS.into_iter().flat_map(|t| [None, Some(0.5)].map(|m| (t, m))) {
        on_local(3, move |group| {
            let policy = Policy::topk(DENSITY).threshold(threshold);
            let policy = momentum.map_or(policy, |factor| policy.momentum(factor));
            let mut whole = built(group, policy);
            let average = |exchange: &mut GradientExchange, number| {
                let mut gradients = [gradient(group.rank(), number)];
                exchange.average(&mut gradients).unwrap();
                gradients
            };
            (0..5).for_each(|number| drop(average(&mut whole, number)));
            let mut state = Vec::new();
            whole.save(&mut state).unwrap();
            assert_eq!(state.len(), whole.saved_bytes());
            let mut restarted = built(group, policy);
            average(&mut restarted, 9);
            restarted.load(&mut &state[..]).unwrap();
            for number in 5..9 {
                assert!(average(&mut whole, number) == average(&mut restarted, number), "{policy}");
            }
            assert_eq!(whole.residual("weight"), restarted.residual("weight"), "{policy}");
        });
    }
}

#[test]
fn another_threshold_is_a_mismatch_that_names_both() {
    let texts = on_local(3, |group| {
        let threshold = if group.rank() == 1 { Threshold::Sampled } else { Threshold::Fixed(0.5) };
        let error = built(group, Policy::topk(DENSITY).threshold(threshold)).average(&mut [vec![1.0; COUNT]]);
        let error = error.unwrap_err();
        assert!(matches!(error, Error::Collective(Collective::Mismatch { .. } | Collective::Differs { .. })));
        error.to_string()
    });
    let names = |text: &String| ["sampled threshold", "threshold 0.5"].iter().all(|part| text.contains(part));
    assert!(texts.iter().any(names), "{texts:?}");
}
