//! Thresholds that several tensors have in common, against references of all ranks.

use brevity::compress::generator::Generator;
use brevity::compress::quantise::{Magnitude, Values};
use brevity::compress::select::{SampledScratch, sampled_top_k};
use brevity::compress::{Density, SparseVec};
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{Error, GradientExchange, Group, Policy, Scope, Settings, Threshold};
use brevity_tests::{on_local, oracle};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const COUNTS: [usize; 4] = [200, 30, 170, 60];
/// What tensors are multiplied by: the largest values are in some.
const SCALES: [f32; 4] = [1.0, 8.0, 2.0, 1.0];
const DENSITY: f64 = 0.05;
const SEED: u64 = 7;
const STEPS: u32 = 40;

const THRESHOLDS: [Threshold; 4] =
    [Threshold::Exact, Threshold::Sampled, Threshold::Adaptive, Threshold::Fixed(500.0)];

fn on_sim<R, F: Future<Output = R>>(world_size: u32, body: impl Fn(Group) -> F) -> Vec<R> {
    let cluster = Cluster::new(world_size, Links::new(1e-5, 1e-9));
    run(cluster, |transport| body(Group::new(transport, Settings::default()))).unwrap()
}

/// With buckets of the first two and of the last two tensors, unless the scope is the model.
fn built(group: &Group, policy: Policy) -> GradientExchange {
    let builder = GradientExchange::builder(group).seed(SEED).bucket_bytes(4 * 230);
    let tensors = NAMES.into_iter().zip(COUNTS);
    tensors.fold(builder, |builder, (name, count)| builder.tensor(name, [count], policy)).build().unwrap()
}

fn gradients(rank: u32, step: u32) -> Vec<Vec<f32>> {
    let of = |(tensor, (count, scale)): (u32, (usize, f32))| -> Vec<f32> {
        let values = oracle::vector(rank + 10 * tensor + 1000 * step, count);
        values.into_iter().map(|value| scale * (1.0 + (step % 3) as f32) * value).collect()
    };
    (0..).zip(COUNTS.into_iter().zip(SCALES)).map(of).collect()
}

/// The tensors that have a threshold in common.
fn groups(scope: Scope) -> Vec<Vec<usize>> {
    match scope {
        Scope::Model => vec![vec![0, 1, 2, 3]],
        Scope::Bucket => vec![vec![0, 1], vec![2, 3]],
        _ => vec![vec![0], vec![1], vec![2], vec![3]],
    }
}

fn k(tensors: &[usize]) -> usize {
    tensors.iter().map(|tensor| Density::new(DENSITY).unwrap().entries(COUNTS[*tensor])).sum()
}

/// One rank's selection from some tensors, behind each other, in the plainest way.
#[derive(Clone)]
struct Reference {
    threshold: Threshold,
    k: usize,
    seed: u64,
    residual: Vec<f32>,
    /// Of the adaptive one: 0 before the first.
    last: f32,
}

impl Reference {
    fn new(threshold: Threshold, tensors: &[usize]) -> Self {
        let count = tensors.iter().map(|tensor| COUNTS[*tensor]).sum();
        let seed = SEED + tensors[0] as u64;
        Self { threshold, k: k(tensors), seed, residual: vec![0.0; count], last: 0.0 }
    }

    fn select(&mut self, gradient: Vec<f32>, step: u32) -> Vec<(usize, f32)> {
        self.residual = oracle::sum(&[self.residual.clone(), gradient]);
        let (k, residual) = (self.k, &self.residual);
        let reaching = |tau: f32| -> Vec<usize> {
            let reaches = |index: &usize| residual[*index].abs() >= tau && residual[*index] != 0.0;
            (0..residual.len()).filter(reaches).collect()
        };
        let largest =
            || -> Vec<usize> { oracle::top_k(residual, k).into_keys().map(|i| i as usize).collect() };
        let may_stay = self.last > 0.0 && !step.is_multiple_of(32);
        let chosen = match self.threshold {
            Threshold::Sampled => {
                let mut out = SparseVec::new(0);
                let generator = &mut Generator::for_stream(self.seed, step.into());
                sampled_top_k(residual, k, 2 * k, generator, &mut out, &mut SampledScratch::new()).unwrap();
                out.indices().iter().map(|index| *index as usize).collect()
            }
            Threshold::Fixed(tau) if reaching(tau).len() <= k => reaching(tau),
            Threshold::Adaptive
                if may_stay && (k.div_ceil(2)..=2 * k).contains(&reaching(self.last).len()) =>
            {
                reaching(self.last)
            }
            Threshold::Adaptive => {
                let found = largest();
                self.last = found.iter().map(|index| residual[*index].abs()).fold(f32::MAX, f32::min);
                found
            }
            _ => largest(),
        };
        chosen.into_iter().map(|index| (index, std::mem::take(&mut self.residual[index]))).collect()
    }
}

async fn step(exchange: GradientExchange, given: Vec<Vec<f32>>) -> (GradientExchange, Vec<Vec<f32>>) {
    let ((exchange, averages), outcome) = exchange.start(given).await;
    outcome.unwrap();
    (exchange, averages)
}

fn of_group(vectors: &[Vec<f32>], tensors: &[usize]) -> Vec<f32> {
    tensors.iter().flat_map(|tensor| vectors[*tensor].clone()).collect()
}

fn residuals(exchange: &GradientExchange) -> Vec<Vec<f32>> {
    NAMES.iter().map(|name| exchange.residual(name).unwrap()).collect()
}

const SCOPES: [Scope; 3] = [Scope::Tensor, Scope::Bucket, Scope::Model];

#[test]
fn a_rank_selects_by_one_threshold_of_all_tensors_of_a_scope() {
    for (threshold, scope) in THRESHOLDS.into_iter().flat_map(|t| SCOPES.map(|scope| (t, scope))) {
        for world_size in [1, 2, 3, 5, 8] {
            let policy = Policy::topk(DENSITY).threshold(threshold).scope(scope);
            let found = on_sim(world_size, |group| async move {
                let (mut exchange, mut steps) = (built(&group, policy), Vec::new());
                for number in 0..STEPS {
                    let averages;
                    (exchange, averages) = step(exchange, gradients(group.rank(), number)).await;
                    steps.push(averages);
                }
                (steps, residuals(&exchange))
            });
            for tensors in groups(scope) {
                let what = || format!("{policy}, P = {world_size}, tensors {tensors:?}");
                let mut ranks = vec![Reference::new(threshold, &tensors); world_size as usize];
                for number in 0..STEPS {
                    let mut sum = vec![0.0; ranks[0].residual.len()];
                    for (rank, reference) in (0..).zip(&mut ranks) {
                        let selected = reference.select(of_group(&gradients(rank, number), &tensors), number);
                        selected.into_iter().for_each(|(index, value)| sum[index] += value);
                    }
                    sum.iter_mut().for_each(|sum| *sum /= world_size as f32);
                    for (steps, _) in &found {
                        let averages = of_group(&steps[number as usize], &tensors);
                        assert!(averages == sum, "{}, step {number}", what());
                    }
                }
                for ((_, left), reference) in found.iter().zip(&ranks) {
                    assert!(of_group(left, &tensors) == reference.residual, "{}", what());
                }
            }
        }
    }
}

/// The tensor with the largest values sends more than its share, and others less.
#[test]
fn entries_are_spread_by_their_magnitudes() {
    let sent = |scope| {
        let mut exchange = built(&Group::solo(), Policy::topk(DENSITY).scope(scope));
        let mut gradients = gradients(0, 0);
        exchange.average(&mut gradients).unwrap();
        gradients
            .iter()
            .map(|tensor| tensor.iter().filter(|value| **value != 0.0).count())
            .collect::<Vec<_>>()
    };
    assert_eq!(sent(Scope::Tensor), [k(&[0]), k(&[1]), k(&[2]), k(&[3])]);
    let (of_bucket, of_model) = (sent(Scope::Bucket), sent(Scope::Model));
    assert_eq!((of_bucket[0] + of_bucket[1], of_bucket[2] + of_bucket[3]), (k(&[0, 1]), k(&[2, 3])));
    assert!(of_bucket[1] > k(&[1]), "{of_bucket:?}");
    assert_eq!(of_model.iter().sum::<usize>(), k(&[0, 1, 2, 3]));
    assert!(of_model[1] > of_bucket[1], "{of_model:?}");
}

/// Whatever the method, the threshold and the scope; gradients are handed in one by one, or together.
#[test]
fn mass_is_conserved_in_every_scope() {
    let methods: [fn(f64) -> Policy; 3] = [Policy::topk, Policy::gtopk, Policy::oktopk];
    let all = methods.into_iter().flat_map(|method| THRESHOLDS.map(|t| method(DENSITY).threshold(t)));
    for policy in all.flat_map(|policy| [Scope::Bucket, Scope::Model].map(|scope| policy.scope(scope))) {
        let ranks = on_local(4, move |group| {
            let (mut exchange, mut parts) = (built(group, policy), built(group, policy));
            let mut delivered: Vec<Vec<f32>> = COUNTS.map(|count| vec![0.0; count]).to_vec();
            for number in 0..20 {
                let mut found = gradients(group.rank(), number);
                exchange.average(&mut found).unwrap();
                for (all, averages) in delivered.iter_mut().zip(&found) {
                    all.iter_mut().zip(averages).for_each(|(all, average)| *all += 4.0 * average);
                }
                let mut in_parts = gradients(group.rank(), number);
                let mut step = parts.begin().unwrap();
                for tensor in [2, 0, 3] {
                    step.ready(tensor, &in_parts[tensor]).unwrap();
                }
                step.finish(&mut in_parts).unwrap();
                assert!(in_parts == found, "{policy}, step {number}");
            }
            assert_eq!(residuals(&parts), residuals(&exchange), "{policy}");
            (delivered, residuals(&exchange))
        });
        for tensor in 0..COUNTS.len() {
            let given = (0..4).flat_map(|rank| (0..20).map(move |step| gradients(rank, step)));
            let given: Vec<_> = given.map(|mut all| all.swap_remove(tensor)).collect();
            let left = ranks.iter().map(|(_, left)| left[tensor].clone());
            let parts: Vec<_> = left.chain([ranks[0].0[tensor].clone()]).collect();
            assert_eq!(oracle::sum(&parts), oracle::sum(&given), "{policy}, tensor {tensor}");
        }
        assert!(ranks.iter().all(|(delivered, _)| *delivered == ranks[0].0), "{policy}");
    }
}

/// As if each tensor were a part of one that has them all, whatever the momentum.
#[test]
fn momentum_is_that_of_one_long_tensor() {
    let policy = Policy::topk(DENSITY);
    for policy in [policy.momentum(0.5), policy.momentum(0.5).nesterov(), policy.samomentum(0.5)] {
        on_local(3, move |group| {
            let mut exchange = built(group, policy.scope(Scope::Model));
            // The density of the long one is that of all tensors' own entries.
            let (count, k) = (COUNTS.iter().sum::<usize>(), k(&[0, 1, 2, 3]));
            let long = policy.density(k as f64 / count as f64);
            let mut one = GradientExchange::builder(group).tensor("long", [count], long).build().unwrap();
            for number in 0..8 {
                let mut found = gradients(group.rank(), number);
                let mut expected = [found.concat()];
                if number == 5 && group.rank() == 1 {
                    (found[2][7], expected[0][COUNTS[0] + COUNTS[1] + 7]) = (f32::NAN, f32::NAN);
                }
                let averaged = exchange.average(&mut found);
                assert_eq!(averaged.is_err(), one.average(&mut expected).is_err());
                assert_eq!(averaged.is_err(), number == 5);
                if number != 5 {
                    assert!(found.concat() == expected[0], "{policy}, step {number}");
                }
                assert!(residuals(&exchange).concat() == one.residual("long").unwrap(), "{policy}");
            }
        });
    }
}

/// A restart changes no bit, whether it goes on with the same scope or not it loses nothing.
#[test]
fn state_fits_every_scope() {
    for (threshold, momentum) in THRESHOLDS.into_iter().flat_map(|t| [None, Some(0.5)].map(|m| (t, m))) {
        on_local(2, move |group| {
            let policy = Policy::topk(DENSITY).threshold(threshold);
            let policy = momentum.map_or(policy, |factor| policy.momentum(factor));
            for (scope, other) in [(Scope::Bucket, Scope::Model), (Scope::Model, Scope::Tensor)] {
                let mut whole = built(group, policy.scope(scope));
                (0..5).for_each(|number| whole.average(&mut gradients(group.rank(), number)).unwrap());
                let mut state = Vec::new();
                whole.save(&mut state).unwrap();
                let mut restarted = built(group, policy.scope(scope));
                restarted.average(&mut gradients(group.rank(), 9)).unwrap();
                restarted.load(&mut &state[..]).unwrap();
                let mut others = built(group, policy.scope(other));
                others.load(&mut &state[..]).unwrap();
                assert_eq!(residuals(&others), residuals(&whole), "{policy}, {scope} to {other}");
                others.average(&mut gradients(group.rank(), 5)).unwrap();
                for number in 5..9 {
                    let (mut expected, mut found) =
                        (gradients(group.rank(), number), gradients(group.rank(), number));
                    whole.average(&mut expected).unwrap();
                    restarted.average(&mut found).unwrap();
                    assert!(found == expected, "{policy}, {scope}, step {number}");
                }
                assert_eq!(residuals(&restarted), residuals(&whole), "{policy}, {scope}");
            }
        });
    }
}

/// The number of entries of a scope follows the densities of its tensors.
#[test]
fn a_density_counts_for_its_scope() {
    let mut exchange = built(&Group::solo(), Policy::topk(DENSITY).scope(Scope::Model));
    let sent = |exchange: &mut GradientExchange| {
        let mut gradients = gradients(0, 0);
        exchange.average(&mut gradients).unwrap();
        gradients.concat().iter().filter(|value| **value != 0.0).count()
    };
    assert_eq!(sent(&mut exchange), k(&[0, 1, 2, 3]));
    exchange.set_density("a", 0.5).unwrap();
    assert_eq!(sent(&mut exchange), 100 + k(&[1, 2, 3]));
}

#[test]
fn scopes_that_a_policy_does_not_take_are_refused() {
    let one_bit = Values::OneBit(Magnitude::Mean);
    for policy in [Policy::topk(0.1).values(one_bit), Policy::random_k(0.1), Policy::block(0.1)] {
        for scope in [Scope::Bucket, Scope::Model] {
            let refused = policy.scope(scope).check("t", &[8]);
            let is_named =
                matches!(refused, Err(Error::PolicySetting { setting: "the scope of a threshold", .. }));
            assert!(is_named, "{policy}: {refused:?}");
        }
        policy.scope(Scope::Tensor).check("t", &[8]).unwrap();
    }
    Policy::gtopk(0.1).values(Values::Bf16).scope(Scope::Model).check("t", &[8]).unwrap();
}

#[test]
fn another_scope_is_a_mismatch() {
    let texts = on_local(3, |group| {
        let scope = if group.rank() == 1 { Scope::Tensor } else { Scope::Bucket };
        let policy = Policy::topk(DENSITY).scope(scope);
        built(group, policy).average(&mut gradients(group.rank(), 0)).unwrap_err().to_string()
    });
    assert!(texts.iter().any(|text| text.contains("one threshold of the bucket")), "{texts:?}");
}
