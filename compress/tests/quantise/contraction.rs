//! What error feedback accepts keeps residuals bounded, and what would not is refused.

use brevity_compress::codec::Plain;
use brevity_compress::feedback::{ErrorFeedback, Quantised, Rule};
use brevity_compress::momentum::SparsificationAware;
use brevity_compress::quantise::{
    BucketFeedback, ColumnSign, DeferredFeedback, Encoded, Feedback, Format, HalfPrecision, Magnitude,
    MinMax, Norm, Qsgd, Quantiser, Sign, Ternary, TwoBit,
};
use brevity_compress::select::{TopKScratch, top_k};
use brevity_compress::{Error, SparseVec};

use super::{decoded, quantisers, values_at};

const STEPS: usize = 1000;

/// One of each kind, and some that only just contract for 512 values.
fn all(seed: u64) -> Vec<Box<dyn Quantiser>> {
    let mut all = quantisers(seed);
    all.push(Box::new(Plain));
    all.push(Box::new(Qsgd::new(12, 512, Norm::Euclidean, seed)));
    all.push(Box::new(Qsgd::new(8, 512, Norm::Largest, seed)));
    all.push(Box::new(Qsgd::new(2, 512, Norm::Largest, seed)));
    all.push(Box::new(Qsgd::new(7, 512, Norm::Largest, seed)));
    all.push(Box::new(Ternary::halved(seed)));
    all
}

/// Gradients of 1,000 steps: their name, and what fills each.
type Gradients = (&'static str, fn(usize, &mut [f32]));

const GRADIENTS: [Gradients; 5] = [
    ("ones", |_, g| g.fill(1.0)),
    ("normal", |step, g| g.copy_from_slice(&values_at(g.len(), step as u64))),
    ("the same normal", |_, g| g.copy_from_slice(&values_at(g.len(), 3))),
    ("heavy tails", |step, g| {
        let divisors = values_at(g.len(), 70_000 + step as u64);
        g.copy_from_slice(&values_at(g.len(), step as u64));
        g.iter_mut().zip(divisors).for_each(|(g, divisor)| *g /= divisor.abs() + 0.01);
    }),
    ("one", |_, g| {
        g.fill(0.0);
        g[0] = 1.0;
    }),
];

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt()
}

/// The largest norm of a residual in the first and in the second half of the steps, over the largest norm of
/// a gradient. `step` takes a gradient and returns the norm of the residual.
fn growth(n: usize, gradients: Gradients, mut step: impl FnMut(&[f32]) -> f64) -> [f64; 2] {
    let (mut g, mut largest, mut halves) = (vec![0.0; n], 0.0_f64, [0.0_f64; 2]);
    for number in 0..STEPS {
        gradients.1(number, &mut g);
        largest = largest.max(norm(&g));
        let half = &mut halves[2 * number / STEPS];
        *half = half.max(step(&g));
    }
    halves.map(|half| half / largest)
}

fn assert_bounded(what: &str, gradients: Gradients, [before, after]: [f64; 2]) {
    assert!(after <= 1.25 * before + 1e-6, "{what}, {}: {before}, then {after}", gradients.0);
}

/// `r += g; r -= C(r)` without any check.
fn unchecked(n: usize, gradients: Gradients, quantiser: &mut dyn Quantiser) -> [f64; 2] {
    let mut r = vec![0.0; n];
    growth(n, gradients, |g| {
        r.iter_mut().zip(g).for_each(|(r, g)| *r = (*r + g).clamp(-1e30, 1e30));
        let said = decoded(quantiser, &r);
        r.iter_mut().zip(said).for_each(|(r, said)| *r -= said);
        norm(&r)
    })
}

#[test]
fn residuals_stay_bounded_over_1000_steps() {
    // The mean of `n` signs delivers an `n`-th of a vector: lasting differences take several times `n` steps.
    let cases = GRADIENTS.iter().map(|gradients| (gradients, 96));
    for (&gradients, n) in cases.chain(GRADIENTS[..2].iter().map(|gradients| (gradients, 512))) {
        for quantiser in all(6).into_iter().filter(|quantiser| quantiser.contracts(n, true)) {
            let (format, mut bytes) = (quantiser.format(), Vec::new());
            let mut feedback = Feedback::new(n, quantiser).unwrap();
            let found = growth(n, gradients, |g| {
                feedback.compress(g, &mut bytes).unwrap();
                norm(feedback.residual())
            });
            assert_bounded(&format!("{format:?}, {n} values"), gradients, found);
        }
    }
}

/// The compressor inside of error feedback by both rules, and of SAMomentum.
#[test]
fn residuals_of_compressors_stay_bounded_over_1000_steps() {
    let n = 96;
    for gradients in GRADIENTS {
        for rule in [Rule::Own, Rule::Global] {
            for quantiser in all(7).into_iter().filter(|quantiser| quantiser.contracts(n, true)) {
                let (format, mut bytes, mut said) = (quantiser.format(), Vec::new(), vec![0.0; n]);
                let mut feedback = ErrorFeedback::with_rule(n, Quantised::new(n, quantiser).unwrap(), rule);
                let found = growth(n, gradients, |g| {
                    feedback.compress(g, &mut bytes).unwrap();
                    Encoded::new(format, n, &bytes).unwrap().decode_into(&mut said).unwrap();
                    feedback.settle(&said).unwrap();
                    norm(feedback.residual().values())
                });
                assert_bounded(&format!("{format:?}, {rule:?}"), gradients, found);
            }
        }
        for quantiser in all(8).into_iter().filter(|quantiser| quantiser.contracts(n, true)) {
            let (format, mut bytes) = (quantiser.format(), Vec::new());
            let compressor = Quantised::new(n, quantiser).unwrap();
            let mut momentum = SparsificationAware::new(n, compressor, 0.5).unwrap();
            let found = growth(n, gradients, |g| {
                momentum.compress(g, 1.0, &mut bytes).unwrap();
                norm(momentum.state())
            });
            assert_bounded(&format!("{format:?}, SAMomentum"), gradients, found);
        }
    }
}

/// A top k, whose values are quantised.
#[test]
fn residuals_of_quantised_selections_stay_bounded_over_1000_steps() {
    let (n, mut scratch) = (1000, TopKScratch::new());
    for (gradients, k) in GRADIENTS[..4].iter().flat_map(|gradients| [(*gradients, 10), (*gradients, 100)]) {
        for mut quantiser in all(9).into_iter().filter(|quantiser| quantiser.contracts(k, false)) {
            let (mut r, mut entries, mut bytes) = (vec![0.0; n], SparseVec::new(n), Vec::new());
            let found = growth(n, gradients, |g| {
                r.iter_mut().zip(g).for_each(|(r, g)| *r += g);
                top_k(&r, k, &mut entries, &mut scratch).unwrap();
                quantiser.encode_sparse(entries.view(), &mut bytes).unwrap();
                let message = Encoded::new(quantiser.format(), entries.len(), &bytes).unwrap();
                message.add_entries_to(-1.0, entries.view(), &mut r).unwrap();
                norm(&r)
            });
            assert_bounded(&format!("{:?}, {k} of {n}", quantiser.format()), gradients, found);
        }
    }
}

/// The tests above would find it.
#[test]
fn what_is_refused_diverges() {
    let diverges = |n: usize, gradients: Gradients, quantiser: &mut dyn Quantiser| {
        assert!(!quantiser.contracts(n, true), "{:?}", quantiser.format());
        let [before, after] = unchecked(n, gradients, quantiser);
        assert!(after > 1.9 * before || before > 1e6, "{:?}: {before}, {after}", quantiser.format());
    };
    for levels in [1, 7] {
        diverges(512, GRADIENTS[0], &mut Qsgd::new(levels, 512, Norm::Euclidean, 1));
    }
    let two_scales: Gradients = ("two scales", |_, g| {
        g.fill(0.0);
        (g[0], g[1]) = (1.0, 3.0);
    });
    diverges(512, two_scales, &mut Sign::new(Magnitude::Min));
}

/// The mean squared error over the squared norm.
fn share_of_error(quantiser: &mut dyn Quantiser, values: &[f32], trials: u32) -> f64 {
    let mut sum = 0.0;
    for _ in 0..trials {
        let errors: Vec<f32> = decoded(quantiser, values).iter().zip(values).map(|(d, v)| d - v).collect();
        sum += norm(&errors).powi(2);
    }
    sum / f64::from(trials) / norm(values).powi(2)
}

/// On either side of each border, the vector with the largest error.
#[test]
fn borders_are_where_the_error_outgrows_the_values() {
    let mut borders: Vec<(Box<dyn Quantiser>, Vec<f32>, bool)> = Vec::new();
    for (levels, contracts) in [(1, false), (7, false), (11, false), (12, true), (100, true)] {
        let quantiser = Qsgd::new(levels, 512, Norm::Euclidean, 3);
        borders.push((Box::new(quantiser), vec![1.0; 512], contracts));
    }
    let largest_and_quarters = |n: usize, levels: f32| {
        let mut values = vec![0.25; n];
        values[n / 2] = levels;
        values
    };
    for (levels, contracts) in [(1, false), (9, true), (127, true)] {
        let quantiser = Qsgd::new(levels, 512, Norm::Largest, 4);
        borders.push((Box::new(quantiser), largest_and_quarters(512, levels.into()), contracts));
    }
    for (n, contracts) in [(1, true), (8, true), (10, false), (512, false)] {
        borders.push((Box::new(Ternary::new(5)), largest_and_quarters(n, 1.0), contracts));
    }
    for (n, contracts) in [(2, true), (100_000, true), (131_072, false)] {
        // Zeros halfway between two points.
        let mut values = vec![0.0; n];
        (values[0], values[n - 1]) = (-127.5, 127.5);
        borders.push((Box::new(MinMax::new(1 << 17)), values, contracts));
    }
    for (n, contracts) in [(1, true), (2, false)] {
        let mut values = vec![0.0; n];
        values[0] = 1.0;
        borders.push((Box::new(Sign::new(Magnitude::Min)), values.clone(), contracts));
        borders.push((Box::new(TwoBit::new(Magnitude::Min)), values, contracts));
    }
    for (mut quantiser, values, contracts) in borders {
        let what = format!("{:?}, {} values", quantiser.format(), values.len());
        assert_eq!(quantiser.contracts(values.len(), true), contracts, "{what}");
        let share = share_of_error(&mut *quantiser, &values, if values.len() > 1000 { 1 } else { 2000 });
        assert_eq!(share < 1.0, contracts, "{what}: {share}");
    }
}

/// Quantisers whose mean squared error may outgrow the values, but no error a share of the largest of them.
#[test]
fn no_error_exceeds_its_share_of_the_largest_value() {
    let n = 1500;
    let mut cases: Vec<(Box<dyn Quantiser>, f32)> = vec![(Box::new(Ternary::halved(3)), 0.5)];
    for levels in [2, 3, 7, 20] {
        cases.push((Box::new(Qsgd::new(levels, 512, Norm::Largest, 3)), 1.0 / f32::from(levels)));
    }
    for (mut quantiser, share) in cases {
        assert!(quantiser.contracts(usize::MAX, true));
        for gradients in GRADIENTS {
            let mut values = vec![0.0; n];
            gradients.1(0, &mut values);
            values[n / 3] = 30.0;
            // A bucket by itself, so that the largest is that of each scale.
            for values in values.chunks(512) {
                let largest = values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
                let errors = decoded(&mut *quantiser, values);
                let error = errors.iter().zip(values).map(|(d, v)| (d - v).abs()).fold(0.0, f32::max);
                let about = format!("{:?}, {}: {error} of {largest}", quantiser.format(), gradients.0);
                assert!(error <= share * largest * 1.0001, "{about}");
            }
        }
    }
    // The mean squared error of few levels does outgrow the values.
    let mut values = vec![0.25; 512];
    values[0] = 2.0;
    assert!(share_of_error(&mut Qsgd::new(2, 512, Norm::Largest, 4), &values, 500) > 1.0);
    assert!(share_of_error(&mut Ternary::halved(4), &values, 500) > 1.0);
}

#[test]
fn what_does_not_contract_is_refused() {
    let n = 2000;
    let text = |refused: Result<(), Error>| refused.unwrap_err().to_string();
    let qsgd = || Qsgd::new(7, 512, Norm::Euclidean, 1);
    let of_qsgd = "error feedback around Qsgd diverges for 2000 values: use the largest magnitude as norm, \
                   more levels or shorter buckets, or no feedback: QSGD has no bias";
    assert_eq!(text(Feedback::new(n, qsgd()).map(drop)), of_qsgd);
    assert_eq!(text(BucketFeedback::new(n, qsgd()).map(drop)), of_qsgd);
    assert_eq!(text(Quantised::new(n, qsgd()).map(drop)), of_qsgd);
    let of_signs = "error feedback around Sign diverges for 2000 values: use the mean, or quantise the \
                    values of a selection";
    assert_eq!(text(DeferredFeedback::new(n, Sign::new(Magnitude::Min)).map(drop)), of_signs);
    assert_eq!(text(Feedback::new(n, Sign::new(Magnitude::Min)).map(drop)), of_signs);
    let refused: [(Box<dyn Quantiser>, Format); 4] = [
        (Box::new(TwoBit::new(Magnitude::Min)), Format::TwoBit),
        (Box::new(Ternary::new(1)), Format::Ternary),
        (Box::new(Ternary::clipped(1, 2.5)), Format::Ternary),
        (Box::new(MinMax::new(1 << 18)), Format::MinMax),
    ];
    for (quantiser, expected) in refused {
        let found = Feedback::new(1 << 18, quantiser).map(drop);
        assert!(
            matches!(&found, Err(Error::Diverges { format, count, .. })
                if *format == expected && *count == 1 << 18),
            "{found:?}"
        );
    }
    // No value of a selection is zero, and few values need few levels.
    assert!(Sign::new(Magnitude::Min).contracts(n, false) && TwoBit::new(Magnitude::Min).contracts(n, false));
    assert!(Feedback::new(195, qsgd()).is_ok() && Feedback::new(196, qsgd()).is_err());
    assert!(ColumnSign::pairs(3).contracts(n, true) && HalfPrecision::f16().contracts(n, true));
}

/// A quantiser that replaces another one is checked when it is used.
#[test]
fn replaced_quantisers_are_refused_too() {
    let (gradient, mut bytes) = (vec![1.0; 512], Vec::new());
    let good = || Qsgd::new(127, 512, Norm::Euclidean, 1);
    let bad = || Qsgd::new(1, 512, Norm::Euclidean, 1);
    let is_refused = |found: Result<(), Error>| matches!(found, Err(Error::Diverges { .. }));
    let mut any = Feedback::new(512, good()).unwrap();
    *any.quantiser_mut() = bad();
    assert!(is_refused(any.compress(&gradient, &mut bytes)));
    assert_eq!(any.residual(), [0.0; 512]);
    let mut bucketed = BucketFeedback::new(512, good()).unwrap();
    *bucketed.quantiser_mut() = bad();
    assert!(is_refused(bucketed.compress(&gradient, &mut bytes)));
    assert_eq!(bucketed.residual(), [0.0; 512]);
    let mut deferred = DeferredFeedback::new(512, Sign::default()).unwrap();
    *deferred.quantiser_mut() = Sign::new(Magnitude::Min);
    assert!(is_refused(deferred.compress(&gradient).map(drop)));
    assert_eq!(deferred.residual(), [0.0; 512]);
    let mut inner = Quantised::new(512, good()).unwrap();
    *inner.quantiser_mut() = bad();
    let mut feedback = ErrorFeedback::new(512, inner);
    assert!(is_refused(feedback.compress(&gradient[..], &mut bytes)));
}
