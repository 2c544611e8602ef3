//! The serial reference of the methods.

use brevity::compress::generator::Generator;
use brevity::compress::low_rank::spectral::{Components, best_low_rank, spectral_atomo};
use brevity::compress::low_rank::{UnbiasedLowRank, Workspace, product};
use brevity::compress::quantise::{Encoded, Magnitude, Values};
use brevity_tests::dense::in_order;

use super::{Atomo, Best, Method, RANK, SEED, SignNorm, Unbiased};

/// What all ranks keep of each tensor.
pub(super) struct Serial {
    method: Method,
    shapes: [[usize; 2]; 2],
    pub(super) kept: Vec<Vec<Vec<f32>>>,
    steps: u32,
}

impl Serial {
    pub(super) fn new(world_size: u32, method: Method, shapes: [[usize; 2]; 2]) -> Self {
        let zeros: Vec<_> = shapes.iter().map(|[rows, cols]| vec![0.0; rows * cols]).collect();
        Self { method, shapes, kept: (0..world_size).map(|_| zeros.clone()).collect(), steps: 0 }
    }

    /// What is sent of a matrix that shrinks, on one rank.
    pub(super) fn sent(&self, values: &[f32], rank: usize, tensor: usize) -> Vec<f32> {
        let [rows, cols] = self.shapes[tensor];
        let dense = |components: Components| {
            let (count, mut out) = (components.count(), vec![0.0; values.len()]);
            // A sample of a matrix of zeros is empty.
            if count > 0 {
                product(components.p(), components.q(), count, &mut out, &mut Workspace::default()).unwrap();
            }
            out
        };
        match self.method {
            Unbiased => unreachable!("its factors are summed"),
            Best => dense(best_low_rank(values, rows, cols, RANK).unwrap()),
            Atomo => {
                let stream = (rank as u64) << 32 ^ u64::from(self.steps);
                let mut generator = Generator::for_stream(SEED + tensor as u64, stream);
                dense(spectral_atomo(values, rows, cols, RANK, &mut generator).unwrap())
            }
            SignNorm => {
                let (mut bytes, mut out) = (Vec::new(), vec![0.0; values.len()]);
                let values_format = Values::OneBit(Magnitude::Mean);
                values_format.quantiser().encode(values, &mut bytes).unwrap();
                let encoded = Encoded::new(values_format.format(), values.len(), &bytes).unwrap();
                encoded.decode_into(&mut out).unwrap();
                out
            }
        }
    }

    fn unbiased(&self, all: &[Vec<f32>], tensor: usize, ranks: f32) -> Vec<f32> {
        let ([rows, cols], mut workspace) = (self.shapes[tensor], Workspace::default());
        let mut state = UnbiasedLowRank::new(rows, cols, RANK, SEED + tensor as u64).unwrap();
        state.draw_for(self.steps.into(), &mut workspace);
        let mut left = |values: &Vec<f32>| {
            let mut p = vec![0.0; rows * RANK];
            state.compress(values, &mut p, &mut workspace).unwrap();
            p
        };
        let sums = in_order(all.iter().map(&mut left).collect());
        let mean: Vec<f32> = sums.into_iter().map(|sum| sum / ranks).collect();
        let mut out = vec![0.0; rows * cols];
        state.reconstruct(&mean, &mut out, &mut workspace).unwrap();
        out
    }

    /// The averages over `ranks`.
    pub(super) fn step(&mut self, gradients: impl Fn(u32) -> Vec<Vec<f32>>, ranks: f32) -> Vec<Vec<f32>> {
        let mut averages = Vec::new();
        for tensor in 0..self.shapes.len() {
            let [rows, cols] = self.shapes[tensor];
            for (rank, kept) in (0..).zip(&mut self.kept) {
                let gradient = gradients(rank).swap_remove(tensor);
                kept[tensor].iter_mut().zip(gradient).for_each(|(kept, g)| *kept += g);
            }
            let all: Vec<_> = self.kept.iter().map(|kept| kept[tensor].clone()).collect();
            let is_small = self.method != SignNorm && (rows + cols) * RANK >= rows * cols;
            let sum = |all| in_order(all).into_iter().map(|sum| sum / ranks).collect::<Vec<f32>>();
            if is_small {
                averages.push(sum(all));
            } else if self.method == Unbiased {
                averages.push(self.unbiased(&all, tensor, ranks));
            } else {
                let sent = (0..).zip(&all).map(|(rank, values)| self.sent(values, rank, tensor));
                let sent: Vec<_> = sent.collect();
                if self.method.has_feedback() {
                    for (kept, sent) in self.kept.iter_mut().zip(&sent) {
                        kept[tensor].iter_mut().zip(sent).for_each(|(kept, sent)| *kept -= sent);
                    }
                }
                averages.push(sum(sent));
            }
            if is_small || !self.method.has_feedback() {
                self.kept.iter_mut().for_each(|kept| kept[tensor].fill(0.0));
            }
        }
        self.steps += 1;
        averages
    }
}
