//! A multi-layer perceptron: linear layers with relu between them, cross-entropy at the end.
//!
//! A layer is `x W + b` with `W` of shape (inputs, outputs), so that candle's gradient of `W` has the memory
//! layout of `W` and is copied out in one pass. The parameters are kept in a list instead of a `VarMap`,
//! which has no order: gradients must have the same order on all ranks.

use crate::data::{Batch, Split};
use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Result, Storage, Tensor, Var, bail};
use candle_nn::loss::cross_entropy;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Examples per forward pass during evaluation.
const EVALUATION_BATCH: usize = 500;

/// The network; identical on all ranks that pass the same sizes and seed.
pub struct Model {
    layers: Vec<Layer>,
    features: usize,
}

struct Layer {
    name: String,
    weight: Var,
    bias: Var,
}

impl Model {
    /// A network with `hidden` layers between `features` inputs and `classes` outputs.
    ///
    /// Weights are drawn uniformly from +-sqrt(6 / inputs) (He et al. 2015), those of the last layer from
    /// +-sqrt(3 / inputs), by the library's generator, because candle's generator for the CPU can't be
    /// seeded. Biases are 0.
    ///
    /// # Errors
    /// Errors of candle, for instance for a layer without units.
    pub fn new(features: usize, hidden: &[usize], classes: usize, seed: u64) -> Result<Self> {
        let sizes: Vec<usize> = [&[features], hidden, &[classes]].concat();
        let mut layers = Vec::with_capacity(sizes.len() - 1);
        for (index, size) in sizes.windows(2).enumerate() {
            let (inputs, outputs) = (size[0], size[1]);
            let last = index + 2 == sizes.len();
            let bound = (if last { 3.0 } else { 6.0 } / inputs as f32).sqrt();
            let mut generator = ChaCha8Rng::seed_from_u64(seed);
            generator.set_stream(index as u64);
            let values: Vec<f32> =
                (0..inputs * outputs).map(|_| generator.random_range(-bound..bound)).collect();
            let device = &Device::Cpu;
            layers.push(Layer {
                name: format!("layer{index}"),
                weight: Var::from_vec(values, (inputs, outputs), device)?,
                bias: Var::from_vec(vec![0.0f32; outputs], outputs, device)?,
            });
        }
        Ok(Self { layers, features })
    }

    /// Name and shape of every parameter, in the order of the gradients.
    pub fn parameters(&self) -> Vec<(String, Vec<usize>)> {
        let shape = |var: &Var| var.dims().to_vec();
        self.layers
            .iter()
            .flat_map(|layer| {
                [
                    (format!("{}.weight", layer.name), shape(&layer.weight)),
                    (format!("{}.bias", layer.name), shape(&layer.bias)),
                ]
            })
            .collect()
    }

    /// One zeroed buffer for each parameter, for [`Model::forward_backward`].
    pub fn gradient_buffers(&self) -> Vec<Vec<f32>> {
        self.vars().map(|var| vec![0.0; var.elem_count()]).collect()
    }

    /// The mean loss of `batch`; its gradients overwrite `gradients`, in the order of [`Model::parameters`].
    ///
    /// # Errors
    /// Errors of candle, and `gradients` with other lengths than the parameters.
    pub fn forward_backward(&self, batch: Batch, gradients: &mut [Vec<f32>]) -> Result<f64> {
        let count = batch.labels.len();
        let labels = Tensor::from_vec(batch.labels, count, &Device::Cpu)?;
        let loss = cross_entropy(&self.forward(batch.values)?, &labels)?;
        let computed = loss.backward()?;
        if gradients.len() != 2 * self.layers.len() {
            bail!("{} gradient buffers, expected {}", gradients.len(), 2 * self.layers.len());
        }
        for (var, target) in self.vars().zip(gradients) {
            match computed.get(var) {
                Some(gradient) => copy_out(gradient, target)?,
                None => target.fill(0.0),
            }
        }
        Ok(f64::from(loss.to_scalar::<f32>()?))
    }

    /// Takes a step: subtracts `learning_rate * update` from every parameter, in place.
    ///
    /// # Errors
    /// If `update` has other lengths than the parameters.
    pub fn apply(&self, update: &[Vec<f32>], learning_rate: f32) -> Result<()> {
        self.change(update, |values, update| {
            for (value, update) in values.iter_mut().zip(update) {
                *value -= learning_rate * update;
            }
        })
    }

    /// Replaces all parameters, in place.
    ///
    /// # Errors
    /// If `values` has other lengths than the parameters.
    pub fn set(&self, values: &[Vec<f32>]) -> Result<()> {
        self.change(values, <[f32]>::copy_from_slice)
    }

    fn change(&self, given: &[Vec<f32>], change: impl Fn(&mut [f32], &[f32]) + Copy) -> Result<()> {
        if given.len() != 2 * self.layers.len() {
            bail!("{} updates, expected {}", given.len(), 2 * self.layers.len());
        }
        for (var, given) in self.vars().zip(given) {
            var.inplace_op1(&InPlace { given, change })?;
        }
        Ok(())
    }

    /// How many examples of `split` in `range` are classified correctly.
    ///
    /// # Errors
    /// Errors of candle.
    ///
    /// # Panics
    /// If `range` is not in `split`.
    pub fn count_correct(&self, split: &Split, range: std::ops::Range<usize>) -> Result<usize> {
        let features = self.features;
        let values = &split.values[range.start * features..range.end * features];
        let labels = &split.labels[range];
        let batches = values.chunks(EVALUATION_BATCH * features);
        let mut correct = 0;
        for (values, labels) in batches.zip(labels.chunks(EVALUATION_BATCH)) {
            let found = self.forward(values.to_vec())?.argmax(1)?.to_vec1::<u32>()?;
            correct += found.iter().zip(labels).filter(|(found, label)| found == label).count();
        }
        Ok(correct)
    }

    /// A copy of all parameters, in the order of [`Model::parameters`].
    ///
    /// # Errors
    /// Errors of candle.
    pub fn values(&self) -> Result<Vec<Vec<f32>>> {
        self.vars().map(|var| var.flatten_all()?.to_vec1()).collect()
    }

    fn vars(&self) -> impl Iterator<Item = &Var> {
        self.layers.iter().flat_map(|layer| [&layer.weight, &layer.bias])
    }

    /// The scores of all classes, one row for each example.
    fn forward(&self, values: Vec<f32>) -> Result<Tensor> {
        let count = values.len() / self.features;
        let mut x = Tensor::from_vec(values, (count, self.features), &Device::Cpu)?;
        for (index, layer) in self.layers.iter().enumerate() {
            if index > 0 {
                x = x.relu()?;
            }
            x = x.matmul(&layer.weight)?.broadcast_add(&layer.bias)?;
        }
        Ok(x)
    }
}

/// Copies a gradient out of candle's memory; the exchange works on plain vectors.
fn copy_out(gradient: &Tensor, target: &mut [f32]) -> Result<()> {
    let gradient = gradient.contiguous()?;
    let (storage, layout) = gradient.storage_and_layout();
    let (Storage::Cpu(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets()) else {
        bail!("a gradient outside the CPU's memory");
    };
    let values = &storage.as_slice::<f32>()?[start..end];
    if values.len() != target.len() {
        bail!("a gradient of {} numbers, expected {}", values.len(), target.len());
    }
    target.copy_from_slice(values);
    Ok(())
}

/// A change of a parameter by as many given numbers, in candle's memory, without a temporary tensor.
struct InPlace<'a, F> {
    given: &'a [f32],
    change: F,
}

impl<F: Fn(&mut [f32], &[f32])> InplaceOp1 for InPlace<'_, F> {
    fn name(&self) -> &'static str {
        "change"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let CpuStorage::F32(values) = storage else {
            bail!("parameters must be f32");
        };
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("parameters must be contiguous");
        };
        let values = &mut values[start..end];
        if values.len() != self.given.len() {
            bail!("an update of {} numbers, expected {}", self.given.len(), values.len());
        }
        (self.change)(values, self.given);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> Batch {
        let values = (0..6 * 5).map(|i| ((i * 7919 % 101) as f32 - 50.0) / 40.0).collect();
        Batch { values, labels: vec![0, 2, 1, 2, 0, 1] }
    }

    /// The loss by plain loops in f64, independent of all tensor code.
    fn serial_loss(parameters: &[Vec<f32>], sizes: &[usize], batch: &Batch) -> f64 {
        let mut loss = 0.0;
        for (example, label) in batch.values.chunks(sizes[0]).zip(&batch.labels) {
            let mut x: Vec<f64> = example.iter().map(|&v| f64::from(v)).collect();
            for (layer, size) in sizes.windows(2).enumerate() {
                if layer > 0 {
                    x.iter_mut().for_each(|v| *v = v.max(0.0));
                }
                let (weight, bias) = (&parameters[2 * layer], &parameters[2 * layer + 1]);
                x = (0..size[1])
                    .map(|o| {
                        let sum: f64 = (0..size[0]).map(|i| x[i] * f64::from(weight[i * size[1] + o])).sum();
                        sum + f64::from(bias[o])
                    })
                    .collect();
            }
            let total: f64 = x.iter().map(|v| v.exp()).sum();
            loss += total.ln() - x[*label as usize];
        }
        loss / batch.labels.len() as f64
    }

    #[test]
    fn gradients_agree_with_finite_differences() {
        let sizes = [5, 8, 4, 3];
        let model = Model::new(5, &[8, 4], 3, 11).unwrap();
        let mut gradients = model.gradient_buffers();
        let loss = model.forward_backward(batch(), &mut gradients).unwrap();
        let parameters = model.values().unwrap();
        assert!((loss - serial_loss(&parameters, &sizes, &batch())).abs() < 1e-5);
        let step = 1e-3f32;
        for tensor in 0..parameters.len() {
            for element in 0..parameters[tensor].len() {
                let loss_at = |offset: f32| {
                    let mut moved = parameters.clone();
                    moved[tensor][element] += offset;
                    serial_loss(&moved, &sizes, &batch())
                };
                let expected = (loss_at(step) - loss_at(-step)) / (2.0 * f64::from(step));
                let found = f64::from(gradients[tensor][element]);
                assert!(
                    (found - expected).abs() < 2e-3 + 1e-2 * expected.abs(),
                    "tensor {tensor} element {element}: {found}, expected {expected}"
                );
            }
        }
        assert!(gradients.iter().all(|g| g.iter().any(|&v| v != 0.0)));
    }

    #[test]
    fn the_seed_alone_decides_the_first_values() {
        let values = |seed| Model::new(5, &[8], 3, seed).unwrap().values().unwrap();
        assert_eq!(values(3), values(3));
        assert_ne!(values(3), values(4));
        let first = &values(3)[0];
        let bound = (6.0f32 / 5.0).sqrt();
        assert!(first.iter().all(|v| v.abs() <= bound));
        assert!(first.iter().any(|v| v.abs() > bound / 2.0));
    }

    #[test]
    fn parameters_are_named_in_the_order_of_the_gradients() {
        let model = Model::new(5, &[8], 3, 0).unwrap();
        let parameters = model.parameters();
        let names: Vec<_> = parameters.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["layer0.weight", "layer0.bias", "layer1.weight", "layer1.bias"]);
        let lengths = model.gradient_buffers();
        for ((_, shape), buffer) in parameters.iter().zip(&lengths) {
            assert_eq!(shape.iter().product::<usize>(), buffer.len());
        }
    }

    #[test]
    fn a_step_subtracts_the_scaled_update() {
        let model = Model::new(2, &[], 2, 1).unwrap();
        let before = model.values().unwrap();
        model.apply(&[vec![1.0, 2.0, 3.0, 4.0], vec![-1.0, 0.5]], 0.5).unwrap();
        let after = model.values().unwrap();
        assert_eq!(after[0][3], before[0][3] - 2.0);
        assert_eq!(after[1], [0.5, -0.25]);
        model.set(&before).unwrap();
        assert_eq!(model.values().unwrap(), before);
        assert!(model.set(&before[..1]).is_err());
        assert!(model.apply(&[vec![1.0; 4]], 0.5).is_err());
        assert!(model.apply(&[vec![1.0; 3], vec![0.0; 2]], 0.5).is_err());
    }

    #[test]
    fn steps_along_the_gradient_learn_the_batch() {
        // Each example has its largest value at the index of its label.
        let mut separable = batch();
        for (example, label) in separable.values.chunks_mut(5).zip(&separable.labels) {
            example[*label as usize] += 2.0;
        }
        let model = Model::new(5, &[16], 3, 2).unwrap();
        let mut gradients = model.gradient_buffers();
        for _ in 0..500 {
            model.forward_backward(separable.clone(), &mut gradients).unwrap();
            model.apply(&gradients, 0.1).unwrap();
        }
        let Batch { values, labels } = separable;
        let split = Split { values, labels };
        assert_eq!(model.count_correct(&split, 0..6).unwrap(), 6);
        assert_eq!(model.count_correct(&split, 2..5).unwrap(), 3);
        let wrong = Split { labels: vec![1, 0, 1, 2, 0, 1], values: split.values };
        assert_eq!(model.count_correct(&wrong, 0..6).unwrap(), 4);
    }
}
