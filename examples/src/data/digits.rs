//! The UCI digits: 1,797 images of 8x8 pixels, small enough to be part of the program.
//!
//! Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine
//! Learning Repository; shipped by the `smartcore` crate.

use super::{Dataset, Split, normalise};

const CLASSES: usize = 10;

/// Every fifth example is a test example, for every seed, so that results of different runs are comparable.
const TEST_STRIDE: usize = 5;

/// The digits, split and normalised; always the same.
pub fn load() -> Dataset {
    let source = smartcore::dataset::digits::load_dataset();
    let features = source.num_features;
    let mut train = Split { values: Vec::new(), labels: Vec::new() };
    let mut test = train.clone();
    for (index, (image, label)) in source.data.chunks_exact(features).zip(&source.target).enumerate() {
        let split = if index % TEST_STRIDE == TEST_STRIDE - 1 { &mut test } else { &mut train };
        split.values.extend_from_slice(image);
        split.labels.push(*label as u32);
    }
    normalise(&mut train.values, &mut test.values);
    Dataset { train, test, features, classes: CLASSES, name: "digits" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_1797_images_of_all_ten_digits() {
        let digits = load();
        assert_eq!((digits.train.len(), digits.test.len()), (1438, 359));
        assert_eq!((digits.features, digits.classes), (64, 10));
        for split in [&digits.train, &digits.test] {
            assert_eq!(split.values.len(), split.len() * 64);
            assert!(split.values.iter().all(|v| v.is_finite()));
            for digit in 0..10 {
                let count = split.labels.iter().filter(|&&l| l == digit).count();
                assert!(count * 20 > split.len(), "{count} images of {digit}");
            }
        }
        assert!(digits.train.labels.iter().all(|&l| l < 10));
    }
}
