//! Shards and seats against references written from the papers, with dense vectors and full sorts.

use brevity_compress::SparseVec;
use brevity_compress::codec::decode;
use brevity_compress::generator::Generator;

use super::method::{Kind, Method, Threshold};
use super::plan::Plan;
use super::shard_tests::{World, builder, flat, gradients};
use super::trailer::Trailer;

const WORKERS: usize = 3;

/// Entries, with their places.
type Entries = Vec<(usize, f32)>;

/// The `k` largest entries of each lane, by a full sort.
fn largest(values: &[f32], plan: &Plan, share: f64) -> Entries {
    let mut kept = Vec::new();
    for lane in &plan.layout.shards[0].lanes {
        let mut entries: Entries =
            lane.clone().map(|index| (index, values[index])).filter(|entry| entry.1 != 0.0).collect();
        entries.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()).then(a.0.cmp(&b.0)));
        entries.truncate((share * lane.len() as f64).ceil() as usize);
        kept.extend(entries);
    }
    kept.sort_by_key(|entry| entry.0);
    kept
}

/// What a worker keeps: `r` or `u` of the papers, and `v` of momentum correction.
#[derive(Clone)]
struct Kept {
    u: Vec<f32>,
    v: Vec<f32>,
}

impl Kept {
    /// Adds a gradient, and takes the entries of a push out.
    fn push(&mut self, method: Method, plan: &Plan, gradient: &[f32], rate: f32) -> Entries {
        match method.0 {
            Kind::Asgd => Vec::new(),
            Kind::GradientDropping { density } => {
                self.u.iter_mut().zip(gradient).for_each(|(r, g)| *r += g);
                let sent = largest(&self.u, plan, density);
                sent.iter().for_each(|(index, _)| self.u[*index] = 0.0);
                sent
            }
            Kind::Dgs { density, momentum } => {
                self.u.iter_mut().zip(gradient).for_each(|(u, g)| *u = momentum * *u + rate * g);
                let sent = largest(&self.u, plan, density);
                self.u.iter_mut().for_each(|u| *u /= momentum);
                sent.iter().for_each(|(index, value)| self.u[*index] = *value);
                sent
            }
            Kind::Dgc { density, momentum, .. } => {
                for ((u, v), g) in self.u.iter_mut().zip(&mut self.v).zip(gradient) {
                    *u = momentum * *u + g;
                    *v += *u;
                }
                let sent = largest(&self.v, plan, density);
                sent.iter().for_each(|(index, _)| (self.u[*index], self.v[*index]) = (0.0, 0.0));
                sent
            }
        }
    }

    /// What it has not sent, as the library holds it.
    fn residual(&self, method: Method) -> Vec<f32> {
        match method.0 {
            // `w`, the velocity that the next gradient is added to.
            Kind::Dgs { momentum, .. } => self.u.iter().map(|u| momentum * u).collect(),
            Kind::Dgc { .. } => self.v.clone(),
            Kind::Asgd | Kind::GradientDropping { .. } => self.u.clone(),
        }
    }
}

/// At every step: each worker's residuals, the model, each answer, and what each worker is owed, which is
/// `M - v[w]`: exactly with gradient dropping, and with momentum up to the rounding of sums.
fn check(method: Method, threshold: Threshold, secondary: f64) {
    let mut world =
        World::new(builder(method).threshold(threshold).secondary_density(secondary), WORKERS as u32);
    let n = world.plan.layout.total;
    let (mut model, mut generator) = (vec![0.0f32; n], Generator::new(7));
    let mut kept = vec![Kept { u: vec![0.0; n], v: vec![0.0; n] }; WORKERS];
    let mut owed = vec![vec![0.0f32; n]; WORKERS];
    let mut versions = vec![vec![0.0f32; n]; WORKERS];
    let within = if matches!(method.0, Kind::GradientDropping { .. }) { 0.0 } else { 1e-3 };
    for step in 0..60 {
        let worker = generator.below(WORKERS as u64) as usize;
        let gradients = gradients(&mut generator);
        let rate = [0.5, 1.0, 2.0][step % 3];
        let by = if method.is_scaled() { 1.0 } else { rate };
        for (index, value) in kept[worker].push(method, &world.plan, &flat(&gradients), rate) {
            model[index] += -by * value;
            owed.iter_mut().for_each(|owed| owed[index] += -by * value);
        }
        // The largest of what the worker is owed are sent.
        let answer = largest(&owed[worker], &world.plan, secondary);
        for (index, value) in &answer {
            versions[worker][*index] += value;
            owed[worker][*index] = 0.0;
        }

        let replies = world.push(worker, &gradients, rate);
        assert_eq!(replies.len(), 1);
        let (payload, trailer) = Trailer::split(&replies[0].bytes).unwrap();
        let mut found = SparseVec::new(0);
        decode(payload, n, n, &mut found).unwrap();
        let found: Entries = found.iter().map(|(index, value)| (index as usize, value)).collect();
        assert_eq!(found, answer, "{method:?}, step {step}");
        assert_eq!(trailer.clock, step as u64 + 1);
        world.take(&replies[0]).unwrap();

        assert_eq!(world.shard.model, model, "{method:?}, step {step}");
        for worker in 0..WORKERS {
            assert_eq!(world.residual(worker), kept[worker].residual(method), "{method:?}, step {step}");
            assert_eq!(flat(&world.parameters[worker]), versions[worker]);
            let found = world.owed(worker);
            assert_eq!(found, owed[worker]);
            for index in 0..n {
                let expected = model[index] - versions[worker][index];
                assert!((found[index] - expected).abs() <= within, "D[w] is M - v[w]: {method:?}, {index}");
            }
        }
    }
}

#[test]
fn methods_are_those_of_the_papers() {
    let methods: [fn(f64) -> Method; 4] = [
        Method::gradient_dropping,
        |density| Method::dgs(density, 0.5),
        |density| Method::dgc(density, 0.5),
        |density| Method::dgc(density, 0.0),
    ];
    for method in methods {
        check(method(0.05), Threshold::PerTensor, 0.1);
        check(method(0.1), Threshold::PerShard, 0.02);
        check(method(0.3), Threshold::PerShard, 1.0);
    }
}
