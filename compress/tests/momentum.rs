//! Momentum around selections, compared with the papers' formulas element by element.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod shapes;

use brevity_compress::feedback::{Compressor, SelectBy, TopK};
use brevity_compress::generator::Generator;
use brevity_compress::momentum::{
    Clip, MomentumCorrection, PostCompression, SparsificationAware, squared_norm,
};
use brevity_compress::state::{from_bytes, to_bytes};
use brevity_compress::{Error, SparseVec};
use half::bf16;
use proptest::prelude::*;
use shapes::{shape, shaped, total_order};

fn bits(values: &[f32]) -> Vec<u32> {
    // Minus zero counts as zero here.
    values.iter().map(|v| (v + 0.0).to_bits()).collect()
}

/// The first `k` in the total order, by sorting.
fn largest(values: &[f32], k: usize) -> Vec<(u32, f32)> {
    let mut entries: Vec<(u32, f32)> =
        (0..).zip(values.iter().copied()).filter(|entry| entry.1 != 0.0).collect();
    entries.sort_by(total_order);
    entries.truncate(k);
    entries.sort_by_key(|entry| entry.0);
    entries
}

/// Momentum correction as written in the paper.
struct Naive {
    u: Vec<f32>,
    v: Vec<f32>,
    m: f32,
    nesterov: bool,
}

impl Naive {
    fn accumulate(&mut self, g: &[f32], factor: f32) {
        for (i, g) in g.iter().map(|g| factor * g).enumerate() {
            self.u[i] = self.m * self.u[i] + g;
            self.v[i] += if self.nesterov { self.m * self.u[i] + g } else { self.u[i] };
        }
    }

    fn mask(&mut self, entries: &[(u32, f32)]) {
        for &(index, _) in entries {
            (self.u[index as usize], self.v[index as usize]) = (0.0, 0.0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Some messages, or parts of them, are lost.
    #[test]
    fn momentum_correction_is_the_papers(
        n in 0_usize..3000, kind in 0_usize..8, seed: u64, m in 0.0_f32..1.0, nesterov: bool, clip: bool,
        share in 0.0..0.2_f64,
    ) {
        let k = (share * n as f64) as usize;
        let mut naive = Naive { u: vec![0.0; n], v: vec![0.0; n], m, nesterov };
        let mut ours = MomentumCorrection::new(n, TopK::new(k), m).unwrap();
        let limit = Clip::new(2.0, 3).unwrap();
        if nesterov { ours = ours.with_nesterov(); }
        if clip { ours = ours.with_clip(limit); }
        let mut message = SparseVec::new(n);
        for step in 0..20 {
            let g: Vec<f32> = shape(kind, n, seed ^ step).iter().map(|g| g.clamp(-1e6, 1e6)).collect();
            let factor = if clip { limit.factor(squared_norm(&g[..]).unwrap()) } else { 1.0 };
            naive.accumulate(&g, factor);
            ours.compress(&g[..], &mut message).unwrap();
            let mut selected = largest(&naive.v, k);
            prop_assert_eq!(message.iter().collect::<Vec<_>>(), selected.clone(), "step {}", step);
            if step % 3 == 1 {
                let (lost, sent): (Vec<_>, Vec<_>) =
                    selected.into_iter().partition(|entry| step % 2 == 0 || entry.0 % 3 == 0);
                let (indices, values) = lost.into_iter().unzip();
                ours.put_back(SparseVec::from_parts(n, indices, values).unwrap().view()).unwrap();
                selected = sent;
            }
            naive.mask(&selected);
            prop_assert_eq!(bits(ours.velocity()), bits(&naive.u), "step {}", step);
            prop_assert_eq!(bits(ours.accumulated()), bits(&naive.v), "step {}", step);
        }
    }

    /// Small integers: every sum is exact, for every selection.
    #[test]
    fn momentum_correction_without_momentum_conserves_mass(n in 1_usize..500, seed: u64, k in 0_usize..60) {
        let mut turn = 0;
        let top_k = MomentumCorrection::new(n, TopK::new(k), 0.0).unwrap();
        let above = MomentumCorrection::new(
            n,
            SelectBy(|v: &[f32], out: &mut SparseVec| pick(v, out, |_, v| v.abs() > 7.0)),
            0.0,
        )
        .unwrap();
        let some = SelectBy(move |v: &[f32], out: &mut SparseVec| {
            turn += 1;
            pick(v, out, |i, _| (i + turn) % 5 == 0)
        });
        check_mass(n, seed, top_k)?;
        check_mass(n, seed, above)?;
        check_mass(n, seed, MomentumCorrection::new(n, some, 0.0).unwrap())?;
    }

    /// The paper's own form, with its division, in double precision.
    #[test]
    fn sparsification_aware_momentum_is_the_papers(
        n in 1_usize..2000, seed: u64, m in 0.05_f32..0.99,
        rate in prop::sample::select(vec![1.0_f32, 0.5, 0.1, 0.003]),
        share in 0.0..0.3_f64,
    ) {
        let k = (share * n as f64) as usize;
        let mut ours = SparsificationAware::new(n, TopK::new(k), m).unwrap();
        let (mut u, mut scale) = (vec![0.0_f64; n], vec![0.0_f64; n]);
        let mut message = SparseVec::new(n);
        for step in 0..30_u64 {
            let g = shape(0, n, seed ^ step);
            ours.compress(&g[..], rate, &mut message).unwrap();
            if step % 7 == 3 {
                ours.put_back(&message).unwrap();
                message.clear();
            }
            for (i, g) in g.iter().enumerate() {
                u[i] = f64::from(m) * u[i] + f64::from(rate) * f64::from(*g);
                scale[i] += f64::from(rate * g.abs());
            }
            let mut sent = message.iter().peekable();
            for i in 0..n {
                // Two roundings a step, none larger than half a unit of all that was added.
                let error = scale[i] * f64::from(f32::EPSILON) * (step + 2) as f64;
                if let Some((_, value)) = sent.next_if(|entry| entry.0 as usize == i) {
                    prop_assert!(
                        (f64::from(value) - u[i]).abs() <= error,
                        "step {}, sent {}: {}, expected {}",
                        step,
                        i,
                        value,
                        u[i]
                    );
                } else {
                    u[i] /= f64::from(m);
                }
                let kept = f64::from(m) * u[i];
                prop_assert!(
                    (f64::from(ours.state()[i]) - kept).abs() <= error,
                    "step {}, element {}: {}, expected {}",
                    step,
                    i,
                    ours.state()[i],
                    kept
                );
            }
        }
    }

    /// With momentum 0.5 and integers everything is exact: an entry that was sent as `u` and then not sent
    /// for `T` steps carries `m u` plus its gradients.
    #[test]
    fn silent_entries_carry_what_the_identity_says(
        n in 1_usize..300,
        seed: u64,
        silent in 0_u64..12,
        rate in prop::sample::select(vec![1.0_f32, 2.0, 0.25]),
    ) {
        let mut step = 0;
        let mut ours = SparsificationAware::new(n, SelectBy(move |u: &[f32], out: &mut SparseVec| {
            step += 1;
            pick(u, out, |_, _| step == 1)
        }), 0.5).unwrap();
        let (mut generator, mut message) = (Generator::new(seed), SparseVec::new(n));
        let mut integers = || (0..n).map(|_| generator.below(2001) as f32 - 1000.0).collect::<Vec<f32>>();
        let first = integers();
        ours.compress(&first[..], rate, &mut message).unwrap();
        let u: Vec<f32> = first.iter().map(|g| rate * g).collect();
        prop_assert_eq!(bits(&message.to_dense()), bits(&u));
        let mut gradients = vec![0.0_f32; n];
        for _ in 0..silent {
            let g = integers();
            gradients.iter_mut().zip(&g).for_each(|(sum, g)| *sum += g);
            ours.compress(&g[..], rate, &mut message).unwrap();
            prop_assert!(message.is_empty());
        }
        let expected: Vec<f32> = u.iter().zip(&gradients).map(|(u, g)| 0.5 * u + rate * g).collect();
        prop_assert_eq!(bits(ours.state()), bits(&expected));
    }

    #[test]
    fn momentum_after_aggregation_is_the_papers(
        start in shaped(0..=300),
        seed: u64,
        m in 0.0_f32..1.0,
        rate in 0.0_f32..1.0,
    ) {
        let n = start.len();
        let mut ours = PostCompression::new(n, m).unwrap();
        let (mut mom, mut x) = (vec![0.0_f32; n], start);
        let mut ours_x = x.clone();
        for step in 0..10 {
            let update = shape(0, n, seed ^ (step + 1));
            ours.apply(&update, rate, &mut ours_x).unwrap();
            for i in 0..n {
                mom[i] = m * mom[i] + update[i];
                x[i] -= rate * (update[i] + mom[i]);
            }
            prop_assert_eq!(bits(ours.momentum()), bits(&mom));
            prop_assert_eq!(bits(&ours_x), bits(&x));
        }
    }
}

/// Selects by index and value.
fn pick(values: &[f32], out: &mut SparseVec, mut wanted: impl FnMut(u32, f32) -> bool) -> Result<(), Error> {
    out.reset(values.len());
    (0..)
        .zip(values)
        .filter(|(index, value)| wanted(*index, **value))
        .for_each(|(index, &value)| out.push(index, value));
    Ok(())
}

fn check_mass<C: Compressor<Message = SparseVec>>(
    n: usize,
    seed: u64,
    mut ours: MomentumCorrection<C>,
) -> Result<(), TestCaseError> {
    let (mut generator, mut message) = (Generator::new(seed), SparseVec::new(n));
    let (mut sent, mut total) = (vec![0.0_f32; n], vec![0.0_f32; n]);
    for step in 0..20 {
        let g: Vec<f32> = (0..n).map(|_| generator.below(19) as f32 - 9.0).collect();
        total.iter_mut().zip(&g).for_each(|(total, g)| *total += g);
        ours.compress(&g[..], &mut message).unwrap();
        if step % 4 == 3 {
            ours.put_back(message.view()).unwrap();
        } else {
            message.add_to(&mut sent);
        }
        let sum: Vec<f32> = sent.iter().zip(ours.accumulated()).map(|(sent, left)| sent + left).collect();
        prop_assert_eq!(bits(&sum), bits(&total), "step {}", step);
    }
    Ok(())
}

#[test]
fn failed_steps_leave_every_bit() {
    let n = 5000;
    let mut ours = MomentumCorrection::new(n, TopK::new(10), 0.5).unwrap();
    let mut message = SparseVec::new(n);
    let mut first = shape(0, n, 4);
    first[4321] = 2.0e38;
    first[4322] = -2.0e38;
    ours.compress_scaled(&first[..], 1.0, &mut message).unwrap();
    ours.put_back(message.view()).unwrap();
    let (u, v) = (bits(ours.velocity()), bits(ours.accumulated()));
    for (index, value) in [(4999, f32::NAN), (17, f32::INFINITY), (4321, 2.0e38), (4322, -2.0e38)] {
        let mut g = shape(0, n, 5);
        g[index] = value;
        let found = ours.compress(&g[..], &mut message);
        assert!(matches!(found, Err(Error::NonFinite { index: i, .. }) if i == index), "{found:?}");
        assert_eq!((bits(ours.velocity()), bits(ours.accumulated())), (u.clone(), v.clone()));
    }
    // A large value of the other sign fits.
    let mut g = vec![0.0; n];
    (g[4321], g[4322]) = (-2.0e38, 2.0e38);
    ours.compress(&g[..], &mut message).unwrap();
    let short = ours.compress(&g[1..], &mut message);
    assert_eq!(short, Err(Error::LengthMismatch { expected: n, found: n - 1 }));
    assert!(matches!(ours.compress_scaled(&g[..], f32::NAN, &mut message), Err(Error::OutOfRange { .. })));
}

#[test]
fn failed_steps_of_sparsification_aware_momentum_are_taken_back() {
    for rate in [1.0, 0.5] {
        let n = 5000;
        let mut ours = SparsificationAware::new(n, TopK::new(10), 0.5).unwrap();
        let mut message = SparseVec::new(n);
        let first: Vec<f32> = shape(7, n, 4);
        ours.compress(&first[..], rate, &mut message).unwrap();
        let before = bits(ours.state());
        let mut g = shape(7, n, 5);
        g[4000] = f32::INFINITY;
        let found = ours.compress(&g[..], rate, &mut message);
        assert_eq!(found, Err(Error::NonFinite { index: 4000, value: f32::INFINITY }), "rate {rate}");
        assert_eq!(bits(ours.state()), before, "rate {rate}");
    }
    let nothing = || TopK::new(1);
    for momentum in [0.0, 1.0, -0.5, f32::NAN] {
        assert!(
            matches!(SparsificationAware::new(1, nothing(), momentum), Err(Error::OutOfRange { .. })),
            "{momentum}"
        );
    }
    assert!(MomentumCorrection::new(1, nothing(), 1.0).is_err());
    assert!(MomentumCorrection::new(1, nothing(), 0.0).is_ok());
}

#[test]
fn gradients_of_other_types_are_their_conversions() {
    let n = 3001;
    let narrow: Vec<bf16> = shape(0, n, 8).into_iter().map(bf16::from_f32).collect();
    let wide: Vec<f32> = narrow.iter().map(|g| g.to_f32()).collect();
    let (mut message, mut expected) = (SparseVec::new(n), SparseVec::new(n));
    let mut correction = MomentumCorrection::new(n, TopK::new(30), 0.9).unwrap();
    let mut aware = SparsificationAware::new(n, TopK::new(30), 0.9).unwrap();
    let (mut correction_of_f32, mut aware_of_f32) = (correction.clone(), aware.clone());
    for rate in [0.1, 1.0] {
        correction.compress(&narrow[..], &mut message).unwrap();
        correction_of_f32.compress(&wide[..], &mut expected).unwrap();
        assert_eq!((&message, correction.velocity()), (&expected, correction_of_f32.velocity()));
        aware.compress(&narrow[..], rate, &mut message).unwrap();
        aware_of_f32.compress(&wide[..], rate, &mut expected).unwrap();
        assert_eq!((&message, aware.state()), (&expected, aware_of_f32.state()));
    }
}

/// Training that is stopped, saved and loaded continues with the same bits.
#[test]
fn loaded_state_goes_on_as_it_would_have() {
    let n = 2000;
    let gradient = |step: u64| shape(0, n, 100 + step);
    let (mut message, mut other) = (SparseVec::new(n), SparseVec::new(n));
    let fresh = || MomentumCorrection::new(n, TopK::new(20), 0.9).unwrap();
    let (mut correction, mut loaded) = (fresh(), fresh());
    (0..3).for_each(|step| correction.compress(&gradient(step)[..], &mut message).unwrap());
    from_bytes(&mut loaded, &to_bytes(&correction)).unwrap();
    correction.compress(&gradient(9)[..], &mut message).unwrap();
    loaded.compress(&gradient(9)[..], &mut other).unwrap();
    assert_eq!((&message, bits(correction.velocity())), (&other, bits(loaded.velocity())));
    assert_eq!(bits(correction.accumulated()), bits(loaded.accumulated()));

    let fresh = || SparsificationAware::new(n, TopK::new(20), 0.9).unwrap();
    let (mut aware, mut loaded) = (fresh(), fresh());
    (0..3).for_each(|step| aware.compress(&gradient(step)[..], 0.1, &mut message).unwrap());
    from_bytes(&mut loaded, &to_bytes(&aware)).unwrap();
    aware.compress(&gradient(9)[..], 1.0, &mut message).unwrap();
    loaded.compress(&gradient(9)[..], 1.0, &mut other).unwrap();
    assert_eq!((&message, bits(aware.state())), (&other, bits(loaded.state())));

    let (mut after, mut x) = (PostCompression::new(n, 0.9).unwrap(), gradient(7));
    (0..3).for_each(|step| after.apply(&gradient(step), 0.1, &mut x).unwrap());
    let (mut loaded, mut loaded_x) = (PostCompression::new(n, 0.9).unwrap(), x.clone());
    from_bytes(&mut loaded, &to_bytes(&after)).unwrap();
    after.apply(&gradient(9), 0.1, &mut x).unwrap();
    loaded.apply(&gradient(9), 0.1, &mut loaded_x).unwrap();
    assert_eq!((bits(&x), bits(after.momentum())), (bits(&loaded_x), bits(loaded.momentum())));

    // Neither of another kind nor of another length.
    assert!(matches!(from_bytes(&mut loaded, &to_bytes(&aware)), Err(Error::State(_))));
    assert!(matches!(
        from_bytes(&mut PostCompression::new(n + 1, 0.9).unwrap(), &to_bytes(&after)),
        Err(Error::State(_))
    ));
    assert_eq!(bits(loaded.momentum()), bits(after.momentum()));
}
