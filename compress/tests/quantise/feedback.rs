//! Error feedback: every kind conserves mass, and lost messages come back.

use brevity_compress::Error;
use brevity_compress::quantise::{
    BucketFeedback, Bucketed, DeferredFeedback, Encoded, Feedback, Format, HalfPrecision, MinMax, Norm,
    OnePass, Qsgd, Quantiser, Sign, TwoBit,
};
use proptest::prelude::*;

use super::shapes::shaped;
use super::{quantisers, values_at};

/// Error feedback of any kind.
trait Kept {
    fn step(&mut self, gradient: &[f32], said: &mut [f32]) -> Result<(), Error>;
    fn stays(&mut self) -> Vec<f32>;
}

impl Kept for (Feedback<Box<dyn Quantiser>>, Format, Vec<u8>) {
    fn step(&mut self, gradient: &[f32], said: &mut [f32]) -> Result<(), Error> {
        self.0.compress(gradient, &mut self.2)?;
        Encoded::new(self.1, gradient.len(), &self.2)?.decode_into(said)
    }

    fn stays(&mut self) -> Vec<f32> {
        self.0.residual().to_vec()
    }
}

impl<Q: Bucketed> Kept for (BucketFeedback<Q>, Format, Vec<u8>) {
    fn step(&mut self, gradient: &[f32], said: &mut [f32]) -> Result<(), Error> {
        self.0.compress(gradient, &mut self.2)?;
        Encoded::new(self.1, gradient.len(), &self.2)?.decode_into(said)
    }

    fn stays(&mut self) -> Vec<f32> {
        self.0.residual().to_vec()
    }
}

impl<Q: OnePass + Clone> Kept for DeferredFeedback<Q> {
    fn step(&mut self, gradient: &[f32], said: &mut [f32]) -> Result<(), Error> {
        let format = self.quantiser().format();
        Encoded::new(format, gradient.len(), self.compress(gradient)?)?.decode_into(said)
    }

    fn stays(&mut self) -> Vec<f32> {
        // A copy is asked, so that the next step finds a message that is still in the residual.
        self.clone().residual().to_vec()
    }
}

/// Every kind around each quantiser that contracts.
fn feedbacks(n: usize, seed: u64) -> Vec<Box<dyn Kept>> {
    let mut all: Vec<Box<dyn Kept>> = Vec::new();
    for quantiser in quantisers(seed).into_iter().filter(|quantiser| quantiser.contracts(n, true)) {
        let format = quantiser.format();
        all.push(Box::new((Feedback::new(n, quantiser).unwrap(), format, Vec::new())));
    }
    let qsgd = Qsgd::new(127, 1024, Norm::Euclidean, seed);
    all.push(Box::new((BucketFeedback::new(n, HalfPrecision::f16()).unwrap(), Format::F16, Vec::new())));
    all.push(Box::new((BucketFeedback::new(n, HalfPrecision::bf16()).unwrap(), Format::Bf16, Vec::new())));
    all.push(Box::new((BucketFeedback::new(n, MinMax::default()).unwrap(), Format::MinMax, Vec::new())));
    all.push(Box::new((BucketFeedback::new(n, qsgd).unwrap(), Format::Qsgd, Vec::new())));
    all.push(Box::new(DeferredFeedback::new(n, Sign::default()).unwrap()));
    all.push(Box::new(DeferredFeedback::new(n, TwoBit::default()).unwrap()));
    all
}

/// What was sent plus what stays is the sum of the gradients, within three roundings a step of the largest
/// sum so far.
fn check_conservation(kept: &mut dyn Kept, gradients: &[Vec<f32>], number: usize) {
    let n = gradients[0].len();
    let (mut sent, mut came, mut scale) = (vec![0.0_f64; n], vec![0.0_f64; n], vec![0.0_f64; n]);
    let mut said = vec![0.0; n];
    for gradient in gradients {
        let before = kept.stays();
        kept.step(gradient, &mut said).unwrap();
        for i in 0..n {
            sent[i] += f64::from(said[i]);
            came[i] += f64::from(gradient[i]);
            scale[i] += f64::from(before[i].abs()) + f64::from(gradient[i].abs()) + f64::from(said[i].abs());
        }
    }
    for (i, stays) in kept.stays().into_iter().enumerate() {
        let off = (sent[i] + f64::from(stays) - came[i]).abs();
        assert!(
            off <= 3.0 * f64::from(f32::EPSILON) * scale[i],
            "feedback {number}, n {n}, {i}: off by {off}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn mass_is_conserved(values in shaped(0..=1300), steps in 1_usize..5, seed: u64) {
        let tame: Vec<f32> = values.iter().map(|v| v.clamp(-1e30, 1e30)).collect();
        let gradients: Vec<Vec<f32>> =
            (0..steps).map(|s| tame.iter().map(|v| v * (1.0 - 0.4 * s as f32)).collect()).collect();
        for (number, mut kept) in feedbacks(values.len(), seed).into_iter().enumerate() {
            check_conservation(&mut *kept, &gradients, number);
        }
    }

    /// The deferred pass gives the bits of three passes.
    #[test]
    fn deferral_changes_no_bit(values in shaped(0..=1300), steps in 1_usize..5) {
        let n = values.len();
        let (mut plain_bytes, mut two_bytes) = (Vec::new(), Vec::new());
        let (one_bit, two_bits) = (Sign::default(), TwoBit::default());
        let (mut plain, mut one_pass) =
            (Feedback::new(n, one_bit).unwrap(), DeferredFeedback::new(n, one_bit).unwrap());
        let (mut two, mut two_pass) =
            (Feedback::new(n, two_bits).unwrap(), DeferredFeedback::new(n, two_bits).unwrap());
        for step in 0..steps {
            let gradient: Vec<f32> =
                values.iter().map(|v| v.clamp(-1e30, 1e30) * (0.5 - step as f32)).collect();
            plain.compress(&gradient, &mut plain_bytes).unwrap();
            prop_assert!(one_pass.compress(&gradient).unwrap() == plain_bytes, "1 bit, step {}", step);
            two.compress(&gradient, &mut two_bytes).unwrap();
            let found = two_pass.compress(&gradient).unwrap();
            prop_assert!(found == two_bytes, "2 bits, step {}", step);
        }
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(one_pass.residual()), bits(plain.residual()));
        prop_assert_eq!(bits(two_pass.residual()), bits(two.residual()));
    }
}

/// QSGD and 8 bits, whose levels of a norm that is not a power of two round.
const ROUND: [usize; 5] = [6, 7, 8, 11, 12];

#[test]
fn integers_are_conserved_exactly() {
    // All magnitudes equal a power of two: means are exact, and so is every difference.
    let gradient: Vec<f32> = (0..1500).map(|i| if i % 3 == 0 { -4.0 } else { 4.0 }).collect();
    let mut said = vec![0.0; gradient.len()];
    for (number, mut kept) in feedbacks(gradient.len(), 2).into_iter().enumerate() {
        let mut sent = vec![0.0_f32; gradient.len()];
        for _ in 0..4 {
            kept.step(&gradient, &mut said).unwrap();
            sent.iter_mut().zip(&said).for_each(|(sent, said)| *sent += said);
        }
        let exact =
            kept.stays().iter().zip(&sent).zip(&gradient).all(|((stays, sent), g)| stays + sent == 4.0 * g);
        assert!(exact || ROUND.contains(&number), "feedback {number}");
    }
}

#[test]
fn refused_gradients_leave_the_residual_as_it_was() {
    for (number, mut kept) in feedbacks(1600, 4).into_iter().enumerate() {
        let mut said = vec![0.0; 1600];
        (1..4).for_each(|seed| kept.step(&values_at(1600, seed), &mut said).unwrap());
        let before = kept.stays();
        let mut bad = values_at(1600, 9);
        bad[1300] = f32::INFINITY;
        let found = kept.step(&bad, &mut said);
        assert!(matches!(found, Err(Error::NonFinite { index: 1300, .. })), "feedback {number}: {found:?}");
        for (i, (after, before)) in kept.stays().iter().zip(&before).enumerate() {
            assert!((after - before).abs() <= 4e-6, "feedback {number}, {i}: {before}, afterwards {after}");
        }
        kept.step(&values_at(1600, 10), &mut said).unwrap();
    }
}

/// `f32::MAX` plus this is finite, and minus this again half a unit too large.
fn a_gradient_that_hardly_fits() -> Vec<f32> {
    let mut gradient = vec![0.0; 600];
    (gradient[0], gradient[599]) = (-1.5 * 2.0_f32.powi(104), f32::NAN);
    gradient
}

#[test]
fn refused_gradients_leave_a_finite_residual() {
    let other = |values: &[f32]| values.iter().copied().find(|value| *value != f32::MAX);
    let gradient = a_gradient_that_hardly_fits();
    let mut deferred = DeferredFeedback::new(600, Sign::default()).unwrap();
    deferred.load(&[f32::MAX; 600]).unwrap();
    assert!(matches!(deferred.compress(&gradient), Err(Error::NonFinite { index: 599, .. })));
    assert_eq!(other(deferred.residual()), None);
    let mut bucketed = BucketFeedback::new(600, HalfPrecision::bf16()).unwrap();
    bucketed.residual_mut().fill(f32::MAX);
    assert!(matches!(
        bucketed.compress(&gradient, &mut Vec::new()),
        Err(Error::NonFinite { index: 599, .. })
    ));
    assert_eq!(other(bucketed.residual()), None);
}

#[test]
fn refused_gradients_leave_no_mark_on_the_quantiser() {
    let mut feedback = DeferredFeedback::new(1024, TwoBit::default()).unwrap();
    for value in [f32::NAN, f32::INFINITY, 1e30] {
        let mut bad = vec![1.0; 1024];
        (bad[0], bad[1023]) = (value, f32::NAN);
        assert!(feedback.compress(&bad).is_err());
        assert_eq!(feedback.quantiser().threshold(), None);
    }
    feedback.load(&[0.0; 1024]).unwrap();
    let gradient = values_at(1024, 7);
    let mut unmarked = DeferredFeedback::new(1024, TwoBit::default()).unwrap();
    assert_eq!(feedback.compress(&gradient), unmarked.compress(&gradient));
    let before = feedback.quantiser().threshold();
    assert!(feedback.compress(&[f32::NAN; 1024]).is_err());
    assert_eq!(feedback.quantiser().threshold(), before);
}

#[test]
fn a_quantiser_may_be_replaced_by_one_with_longer_buckets() {
    let gradient: Vec<f32> = (0..5000).map(|index| (index % 17) as f32 - 8.0).collect();
    let mut feedback = BucketFeedback::new(gradient.len(), Qsgd::new(127, 512, Norm::Euclidean, 1)).unwrap();
    *feedback.quantiser_mut() = Qsgd::new(127, 4096, Norm::Euclidean, 1);
    let (mut bytes, mut sum) = (Vec::new(), feedback.residual().to_vec());
    feedback.compress(&gradient, &mut bytes).unwrap();
    Encoded::new(feedback.quantiser().format(), gradient.len(), &bytes)
        .unwrap()
        .add_to(1.0, &mut sum)
        .unwrap();
    for ((sent, kept), g) in sum.iter().zip(feedback.residual()).zip(&gradient) {
        assert!((sent + kept - g).abs() < 1e-3, "{sent} + {kept} for {g}");
    }
}

#[test]
fn undelivered_messages_are_put_back() {
    let gradient = values_at(1030, 6);
    let mut lost = DeferredFeedback::new(1030, TwoBit::default()).unwrap();
    lost.compress(&gradient).unwrap();
    lost.put_back();
    assert_eq!(lost.residual(), gradient);
    assert!(lost.message().is_none());
    let mut bytes = Vec::new();
    let mut bucketed = BucketFeedback::new(1030, HalfPrecision::bf16()).unwrap();
    bucketed.compress(&gradient, &mut bytes).unwrap();
    bucketed.put_back(&bytes).unwrap();
    assert_eq!(bucketed.residual(), gradient);
}

/// Half a unit of the largest number is lost in the difference, and comes back as a whole one.
#[test]
fn what_is_put_back_onto_the_largest_number_stays_finite() {
    let unit = 2f32.powi(103);
    for sign in [1.0, -1.0] {
        // Their mean is 16,777,211 units.
        let gradient = [sign * f32::MAX, sign * 16_777_203.0 * unit, 0.0];
        let mean = 16_777_211.0 * unit;
        let difference = gradient[0] - sign * mean;
        assert!((difference + sign * mean).is_infinite(), "{difference}");
        let mut deferred = DeferredFeedback::new(3, Sign::default()).unwrap();
        deferred.compress(&gradient).unwrap();
        assert_eq!(deferred.residual(), [difference, sign * -8.0 * unit, -mean]);
        deferred.put_back();
        assert_eq!(deferred.residual(), gradient);
        let (mut plain, mut bytes) = (Feedback::new(3, Sign::default()).unwrap(), Vec::new());
        plain.compress(&gradient, &mut bytes).unwrap();
        assert_eq!(plain.residual(), [difference, sign * -8.0 * unit, -mean]);
        plain.put_back(&bytes).unwrap();
        assert_eq!(plain.residual(), gradient);
    }
}
