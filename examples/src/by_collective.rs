//! Methods that the library's exchange has no policy for: a collective for each matrix.

use crate::exchange::Way;
use crate::method::Method;
use crate::trainer::BoxError;
use brevity::Group;
use brevity::collectives::sparse::{Draw, OkTopk, RandomPlaces};
use brevity::compress::feedback::Residual;
use brevity::compress::generator::Generator;
use brevity::compress::quantise::{Encoded, Norm, Qsgd, Quantiser, Ternary};
use brevity::compress::{Density, SparseVec};

/// QSGD with 4 bits a value and a scale for each 512 of them, the largest magnitude: as in the paper's
/// experiments (Alistarh et al., NeurIPS 2017, section 5).
const QSGD_LEVELS: u8 = 7;
const QSGD_BUCKET: u32 = 512;

/// TernGrad clips at so many standard deviations (Wen et al., NeurIPS 2017, section 3.2).
const TERNGRAD_CLIP: f32 = 2.5;

/// One matrix of a method, on one rank.
pub enum ByCollective {
    /// Entries that reach a threshold which ranks use for some steps; what is not delivered is kept.
    OkTopk(Residual, OkTopk),
    /// Values at places that all ranks draw alike, other ones in each step; what is not delivered is kept.
    Random(Residual, RandomPlaces),
    /// Every element, rounded at random: unbiased, so nothing is kept. Each rank gets the messages of all.
    Rounded(Box<dyn Quantiser>),
}

impl ByCollective {
    /// The matrix number `tensor` of a model, of `count` elements; `None` if the exchange has a policy for
    /// the method. All ranks draw the same places for a seed, and round in different ways.
    ///
    /// # Errors
    /// For a density out of range.
    pub fn new(group: &Group, way: Way, (tensor, count): (usize, usize)) -> brevity::Result<Option<Self>> {
        let k = Density::new(way.density)?.entries(count);
        let mut generator = Generator::for_stream(way.seed, tensor as u64);
        let places = |draw, seed| Self::Random(Residual::new(count), RandomPlaces { draw, k, seed, step: 0 });
        let common = generator.next_u64();
        let own = Generator::for_stream(common, group.rank().into()).next_u64();
        Ok(Some(match way.method {
            Method::Oktopk => Self::OkTopk(Residual::new(count), OkTopk::new(count, k, group.world_size())),
            Method::RandomK => places(Draw::Scattered, common),
            Method::RandomBlock => places(Draw::Block, common),
            Method::Qsgd => Self::Rounded(Box::new(Qsgd::new(QSGD_LEVELS, QSGD_BUCKET, Norm::Largest, own))),
            Method::Terngrad => Self::Rounded(Box::new(Ternary::clipped(own, TERNGRAD_CLIP))),
            _ => return Ok(None),
        }))
    }

    /// Replaces the gradient by what is delivered of all ranks', divided by their number: the same bits on
    /// every rank.
    ///
    /// # Errors
    /// Errors of the collective, and for a value that is not finite. The run ends then.
    pub fn average(&mut self, group: &Group, gradient: &mut [f32]) -> Result<(), BoxError> {
        let share = 1.0 / group.world_size() as f32;
        match self {
            Self::OkTopk(residual, state) => {
                residual.accumulate(gradient)?;
                let mut selected = SparseVec::new(gradient.len());
                state.select(residual.values(), &mut selected)?;
                residual.clear_at(selected.indices())?;
                let sum = group.ok_topk_all_reduce(selected.view(), state)?;
                residual.put_back(sum.put_back.view())?;
                gradient.fill(0.0);
                sum.result.view().add_scaled_to(share, gradient);
            }
            Self::Random(residual, places) => {
                residual.accumulate(gradient)?;
                let sum = group.random_k_all_reduce(residual.values(), *places)?;
                residual.clear_at(sum.indices())?;
                places.step += 1;
                gradient.fill(0.0);
                sum.view().add_scaled_to(share, gradient);
            }
            Self::Rounded(quantiser) => {
                let mut own = Vec::new();
                quantiser.encode(gradient, &mut own)?;
                let mut all = vec![0; own.len() * group.world_size() as usize];
                group.all_gather(&own, &mut all)?;
                gradient.fill(0.0);
                // In the order of the ranks.
                for message in all.chunks(own.len().max(1)) {
                    Encoded::new(quantiser.format(), gradient.len(), message)?.add_to(share, gradient)?;
                }
            }
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

    /// The averages of each step, and what each rank keeps at the end.
    fn averages(method: Method, density: f64, steps: usize) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
        let rank = |transport| {
            let group = Group::new(Box::new(transport), brevity::Settings::default());
            let way = Way { method, density, rank: 1, seed: 9 };
            let mut by = ByCollective::new(&group, way, (2, COUNT)).unwrap().unwrap();
            let step = |step| {
                let mut gradient = gradient(group.rank(), step);
                by.average(&group, &mut gradient).unwrap();
                gradient
            };
            let averages: Vec<Vec<f32>> = (0..steps).map(step).collect();
            let kept = match &by {
                ByCollective::OkTopk(residual, _) | ByCollective::Random(residual, _) => {
                    residual.values().to_vec()
                }
                ByCollective::Rounded(_) => vec![0.0; COUNT],
            };
            (averages, kept)
        };
        let rank = &rank;
        let ranks: Vec<_> = std::thread::scope(|scope| {
            let ends = local::world(RANKS).into_iter();
            let threads: Vec<_> = ends.map(|end| scope.spawn(move || rank(end))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(ranks.iter().all(|(averages, _)| *averages == ranks[0].0), "{method}: ranks differ");
        (ranks[0].0.clone(), ranks.into_iter().map(|(_, kept)| kept).collect())
    }

    /// The largest difference between what was given, and what was delivered or kept.
    fn lost(averages: &[Vec<f32>], kept: &[Vec<f32>]) -> f64 {
        let total = |of: &dyn Fn(usize) -> f64| (0..COUNT).map(of).fold(0.0, f64::max);
        let given: Vec<Vec<f32>> =
            (0..RANKS).flat_map(|rank| (0..averages.len()).map(move |step| gradient(rank, step))).collect();
        let sum = |all: &[Vec<f32>], place: usize| all.iter().map(|v| f64::from(v[place])).sum::<f64>();
        total(&|place| {
            let delivered = f64::from(RANKS) * sum(averages, place);
            (sum(&given, place) - delivered - sum(kept, place)).abs()
        })
    }

    #[test]
    fn what_is_not_delivered_is_kept() {
        for method in [Method::Oktopk, Method::RandomK, Method::RandomBlock] {
            let (averages, kept) = averages(method, 0.05, 8);
            assert!(lost(&averages, &kept) < 1e-4, "{method}: {}", lost(&averages, &kept));
            let delivered = |average: &Vec<f32>| average.iter().filter(|value| **value != 0.0).count();
            assert!(averages.iter().all(|average| (75..=300).contains(&delivered(average))), "{method}");
            let places = |step: usize| averages[step].iter().map(|value| *value == 0.0).collect::<Vec<_>>();
            assert_ne!(places(0), places(1), "{method}");
        }
    }

    #[test]
    fn random_rounding_is_right_on_average() {
        for (method, most) in [(Method::Qsgd, 0.3), (Method::Terngrad, 1.5)] {
            let (averages, _) = averages(method, 1.0, 40);
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
        let by = |method, density| {
            ByCollective::new(&Group::solo(), Way { method, density, rank: 1, seed: 1 }, (0, 8))
        };
        assert!(by(Method::Gtopk, 0.5).unwrap().is_none());
        assert!(by(Method::RandomK, 2.0).is_err());
    }
}
