//! Methods that round at random and keep nothing: an all-gather for each matrix. The exchange has no policy
//! for them: with error feedback their residuals would grow.

use crate::exchange::Way;
use crate::method::Method;
use crate::trainer::BoxError;
use brevity::Group;
use brevity::compress::generator::Generator;
use brevity::compress::quantise::{Encoded, Norm, Qsgd, Quantiser, Ternary};

/// QSGD with 4 bits a value and a scale for each 512 of them, the largest magnitude: as in the paper's
/// experiments (Alistarh et al., NeurIPS 2017, section 5).
const QSGD_LEVELS: u8 = 7;
const QSGD_BUCKET: u32 = 512;

/// TernGrad clips at so many standard deviations (Wen et al., NeurIPS 2017, section 3.2).
const TERNGRAD_CLIP: f32 = 2.5;

/// One matrix on one rank, of which every element is rounded: unbiased, so nothing is kept. Each rank gets
/// the messages of all.
pub struct Rounded(Box<dyn Quantiser>);

impl Rounded {
    /// The matrix number `tensor` of a model; `None` if the exchange has a policy for the method. Ranks round
    /// in different ways.
    pub fn new(group: &Group, way: Way, tensor: usize) -> Option<Self> {
        let common = Generator::for_stream(way.seed, tensor as u64).next_u64();
        let own = Generator::for_stream(common, group.rank().into()).next_u64();
        match way.method {
            Method::Qsgd => Some(Self(Box::new(Qsgd::new(QSGD_LEVELS, QSGD_BUCKET, Norm::Largest, own)))),
            Method::Terngrad => Some(Self(Box::new(Ternary::clipped(own, TERNGRAD_CLIP)))),
            _ => None,
        }
    }

    /// Replaces the gradient by the average of what all ranks have made of theirs: the same bits on every
    /// rank.
    ///
    /// # Errors
    /// Errors of the collective, and for a value that is not finite. The run ends then.
    pub fn average(&mut self, group: &Group, gradient: &mut [f32]) -> Result<(), BoxError> {
        let (Self(quantiser), share) = (self, 1.0 / group.world_size() as f32);
        let mut own = Vec::new();
        quantiser.encode(gradient, &mut own)?;
        let mut all = vec![0; own.len() * group.world_size() as usize];
        group.all_gather(&own, &mut all)?;
        gradient.fill(0.0);
        // In the order of the ranks.
        for message in all.chunks(own.len().max(1)) {
            Encoded::new(quantiser.format(), gradient.len(), message)?.add_to(share, gradient)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use brevity::transport::local;

    const COUNT: usize = 3000;
    const RANKS: u32 = 3;

    fn gradient(rank: u32, step: usize) -> Vec<f32> {
        let mut gradient = vec![0.0; COUNT];
        Generator::for_stream(step as u64, rank.into()).fill_normal(&mut gradient);
        gradient
    }

    /// The averages of each step.
    fn averages(method: Method, steps: usize) -> Vec<Vec<f32>> {
        let rank = |transport| {
            let group = Group::new(Box::new(transport), brevity::Settings::default());
            let way = Way { method, density: 1.0, rank: 1, seed: 9 };
            let mut rounded = Rounded::new(&group, way, 2).unwrap();
            let step = |step| {
                let mut gradient = gradient(group.rank(), step);
                rounded.average(&group, &mut gradient).unwrap();
                gradient
            };
            (0..steps).map(step).collect::<Vec<Vec<f32>>>()
        };
        let rank = &rank;
        let ranks: Vec<_> = std::thread::scope(|scope| {
            let ends = local::world(RANKS).into_iter();
            let threads: Vec<_> = ends.map(|end| scope.spawn(move || rank(end))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(ranks.iter().all(|averages| *averages == ranks[0]), "{method}: ranks differ");
        ranks[0].clone()
    }

    #[test]
    fn random_rounding_is_right_on_average() {
        for (method, most) in [(Method::Qsgd, 0.3), (Method::Terngrad, 1.5)] {
            let averages = averages(method, 40);
            let error = |steps: usize| {
                let mean = |place: usize| {
                    let off = |step: usize| {
                        let exact: f32 = (0..RANKS).map(|rank| gradient(rank, step)[place]).sum();
                        averages[step][place] - exact / RANKS as f32
                    };
                    f64::from((0..steps).map(off).sum::<f32>()) / steps as f64
                };
                ((0..200).map(|place| mean(place).powi(2)).sum::<f64>() / 200.0).sqrt()
            };
            let (one, all) = (error(1), error(40));
            assert!(one > 0.0 && one < most, "{method}: {one}");
            // The errors of 40 steps are independent: their mean is a sixth.
            assert!(all < one / 4.0, "{method}: {one} and {all}");
        }
    }

    #[test]
    fn other_methods_are_those_of_the_exchange() {
        let way = Way { method: Method::Gtopk, density: 0.5, rank: 1, seed: 1 };
        assert!(Rounded::new(&Group::solo(), way, 0).is_none());
    }
}
