//! Examples with labels, and their distribution to the ranks.

pub mod digits;
pub mod idx;
mod shard;

pub use shard::{Shard, batches_per_epoch};

/// A labelled data set, already normalised.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// The examples that the network is trained on.
    pub train: Split,
    /// The examples that it is evaluated on.
    pub test: Split,
    /// Numbers per example.
    pub features: usize,
    /// Labels run from 0 to `classes - 1`.
    pub classes: usize,
    /// The name in reports.
    pub name: &'static str,
}

/// One part of a data set: `labels.len()` examples in sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    /// `labels.len() * features` numbers, example by example.
    pub values: Vec<f32>,
    /// One label an example.
    pub labels: Vec<u32>,
}

/// Some examples, copied into one matrix for the network.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// One row an example.
    pub values: Vec<f32>,
    /// One label an example.
    pub labels: Vec<u32>,
}

impl Split {
    /// The number of examples.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are no examples.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Copies the examples at `indices`, in that order, into a batch.
    ///
    /// # Panics
    /// If an index is not below [`Split::len`].
    pub fn batch(&self, indices: &[u32]) -> Batch {
        let features = self.values.len() / self.len().max(1);
        // The examples of a shuffled batch are scattered; the matrix needs a copy.
        let mut values = Vec::with_capacity(indices.len() * features);
        for &index in indices {
            let start = index as usize * features;
            values.extend_from_slice(&self.values[start..start + features]);
        }
        let labels = indices.iter().map(|&i| self.labels[i as usize]).collect();
        Batch { values, labels }
    }
}

/// Shifts and scales both splits by the mean and the standard deviation of the training values.
fn normalise(train: &mut [f32], test: &mut [f32]) {
    let count = train.len().max(1) as f64;
    let mean = train.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
    let variance = train.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count;
    let scale = if variance > 0.0 { variance.sqrt().recip() } else { 1.0 };
    let (mean, scale) = (mean as f32, scale as f32);
    for value in train.iter_mut().chain(test) {
        *value = (*value - mean) * scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalised_values_have_mean_zero_and_deviation_one() {
        let mut train: Vec<f32> = (0..1000).map(|i| (i % 7) as f32 * 3.0 + 5.0).collect();
        let mut test = vec![5.0];
        normalise(&mut train, &mut test);
        let mean = train.iter().sum::<f32>() / 1000.0;
        let square = train.iter().map(|x| x * x).sum::<f32>() / 1000.0;
        assert!(mean.abs() < 1e-4, "mean {mean}");
        assert!((square - 1.0).abs() < 1e-3, "mean square {square}");
        assert_eq!(test[0], train[0]);
    }

    #[test]
    fn constant_values_stay_finite() {
        let mut train = vec![3.0; 8];
        normalise(&mut train, &mut []);
        assert_eq!(train, vec![0.0; 8]);
    }

    #[test]
    fn a_batch_holds_the_asked_examples_in_order() {
        let split = Split { values: (0..12).map(|v| v as f32).collect(), labels: vec![7, 8, 9] };
        let batch = split.batch(&[2, 0]);
        assert_eq!(batch.values, [8.0, 9.0, 10.0, 11.0, 0.0, 1.0, 2.0, 3.0]);
        assert_eq!(batch.labels, [9, 7]);
    }
}
