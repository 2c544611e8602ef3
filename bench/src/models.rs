//! The tensors of well-known models, by name and shape.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// A tensor's name and its dimensions.
pub type TensorShape = (String, Vec<usize>);

/// A model whose gradients are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelShape {
    /// ResNet-50 for ImageNet: 161 tensors of 25.6 million elements. He et al., CVPR 2016.
    Resnet50,
    /// VGG-16 for ImageNet: 32 tensors of 138 million elements. Simonyan and Zisserman, ICLR 2015.
    Vgg16,
    /// The large LSTM for the Penn Treebank, of 1,500 units and 10,000 words: 11 tensors of 66 million
    /// elements. Zaremba et al., 2014.
    Lstm,
    /// The base transformer of 37,000 words: 253 tensors of 63 million elements. Vaswani et al., NeurIPS
    /// 2017.
    Transformer,
    /// So many equal vectors of so many elements.
    Vectors(usize, usize),
    /// One matrix of so many rows and columns.
    Matrix(usize, usize),
}

impl ModelShape {
    /// Its tensors, from the first layer on.
    #[must_use]
    pub fn tensors(self) -> Vec<TensorShape> {
        let mut list = List::default();
        match self {
            Self::Resnet50 => resnet50(&mut list),
            Self::Vgg16 => vgg16(&mut list),
            Self::Lstm => lstm(&mut list),
            Self::Transformer => transformer(&mut list),
            Self::Vectors(count, length) => {
                (0..count).for_each(|number| list.add(format!("vector{number}"), &[length]));
            }
            Self::Matrix(rows, columns) => list.add("matrix", &[rows, columns]),
        }
        list.0
    }
}

impl fmt::Display for ModelShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resnet50 => f.write_str("resnet50"),
            Self::Vgg16 => f.write_str("vgg16"),
            Self::Lstm => f.write_str("lstm"),
            Self::Transformer => f.write_str("transformer"),
            Self::Vectors(count, length) => write!(f, "{count}x{length}"),
            Self::Matrix(rows, columns) => write!(f, "matrix:{rows}x{columns}"),
        }
    }
}

impl FromStr for ModelShape {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let known = [Self::Resnet50, Self::Vgg16, Self::Lstm, Self::Transformer];
        let sizes = |text: &str| -> Option<(usize, usize)> {
            let (first, second) = text.split_once('x')?;
            Some((first.parse().ok()?, second.parse().ok()?))
        };
        let other = || match text.strip_prefix("matrix:") {
            Some(text) => {
                let (rows, columns) = sizes(text)?;
                rows.checked_mul(columns).map(|_| Self::Matrix(rows, columns))
            }
            None => {
                let (count, length) = sizes(text)?;
                (1..=100_000).contains(&count).then_some(Self::Vectors(count, length))
            }
        };
        known.into_iter().find(|model| model.to_string() == text).or_else(other).ok_or_else(|| {
            let expected = "resnet50, vgg16, lstm, transformer, COUNTxLENGTH for up to 100000 vectors, or \
                            matrix:ROWSxCOLUMNS";
            Error::Arguments(format!("--model {text}: name one of {expected}"))
        })
    }
}

/// Tensors in their order.
#[derive(Default)]
struct List(Vec<TensorShape>);

impl List {
    fn add(&mut self, name: impl Into<String>, shape: &[usize]) {
        self.0.push((name.into(), shape.to_vec()));
    }

    /// A matrix and a bias for each of its rows.
    fn linear(&mut self, name: &str, rows: usize, columns: usize) {
        self.add(format!("{name}.weight"), &[rows, columns]);
        self.add(format!("{name}.bias"), &[rows]);
    }

    /// A factor and a summand for each channel.
    fn norm(&mut self, name: &str, channels: usize) {
        self.add(format!("{name}.weight"), &[channels]);
        self.add(format!("{name}.bias"), &[channels]);
    }
}

fn resnet50(list: &mut List) {
    list.add("conv1.weight", &[64, 3, 7, 7]);
    list.norm("bn1", 64);
    let mut channels = 64;
    for (stage, (blocks, width)) in [(3, 64), (4, 128), (6, 256), (3, 512)].into_iter().enumerate() {
        for block in 0..blocks {
            let name = |part: &str| format!("layer{}.{block}.{part}", stage + 1);
            let wide = 4 * width;
            for (part, shape) in
                [(1, [width, channels, 1, 1]), (2, [width, width, 3, 3]), (3, [wide, width, 1, 1])]
            {
                list.add(name(&format!("conv{part}.weight")), &shape);
                list.norm(&name(&format!("bn{part}")), shape[0]);
            }
            if block == 0 {
                list.add(name("downsample.0.weight"), &[wide, channels, 1, 1]);
                list.norm(&name("downsample.1"), wide);
            }
            channels = wide;
        }
    }
    list.linear("fc", 1000, channels);
}

fn vgg16(list: &mut List) {
    let mut channels = 3;
    for (number, width) in
        [64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512].into_iter().enumerate()
    {
        list.add(format!("conv{number}.weight"), &[width, channels, 3, 3]);
        list.add(format!("conv{number}.bias"), &[width]);
        channels = width;
    }
    for (number, (rows, columns)) in [(4096, 512 * 7 * 7), (4096, 4096), (1000, 4096)].into_iter().enumerate()
    {
        list.linear(&format!("fc{number}"), rows, columns);
    }
}

fn lstm(list: &mut List) {
    const UNITS: usize = 1500;
    const WORDS: usize = 10_000;
    list.add("embedding.weight", &[WORDS, UNITS]);
    for layer in 0..2 {
        for side in ["input", "hidden"] {
            list.linear(&format!("lstm{layer}.{side}"), 4 * UNITS, UNITS);
        }
    }
    list.linear("decoder", WORDS, UNITS);
}

fn transformer(list: &mut List) {
    const WIDTH: usize = 512;
    list.add("embedding.weight", &[37_000, WIDTH]);
    for (side, attentions) in [("encoder", 1), ("decoder", 2)] {
        for layer in 0..6 {
            let name = |part: &str| format!("{side}{layer}.{part}");
            for attention in 0..attentions {
                for part in ["query", "key", "value", "output"] {
                    list.linear(&name(&format!("attention{attention}.{part}")), WIDTH, WIDTH);
                }
                list.norm(&name(&format!("norm{attention}")), WIDTH);
            }
            list.linear(&name("feed.first"), 4 * WIDTH, WIDTH);
            list.linear(&name("feed.second"), WIDTH, 4 * WIDTH);
            list.norm(&name("norm.feed"), WIDTH);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_have_the_published_numbers_of_tensors_and_elements() {
        for (name, tensors, elements) in [
            ("resnet50", 161, 25_557_032),
            ("vgg16", 32, 138_357_544),
            ("lstm", 11, 66_034_000),
            ("transformer", 253, 63_082_496),
            ("500x2000", 500, 1_000_000),
            ("1x0", 1, 0),
            ("matrix:4096x6104", 1, 25_001_984),
        ] {
            let model: ModelShape = name.parse().unwrap();
            let list = model.tensors();
            let found: usize = list.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
            assert_eq!((list.len(), found), (tensors, elements), "{name}");
            assert_eq!(model.to_string(), name);
            let mut names: Vec<_> = list.iter().map(|(name, _)| name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), tensors, "{name}");
        }
    }

    #[test]
    fn other_models_are_refused_with_what_is_expected() {
        let matrices = ["matrix:", "matrix:5", "matrix:-1x5"];
        for text in ["", "resnet18", "x", "0x5", "5x", "-1x5", "100001x1"].into_iter().chain(matrices) {
            let error = text.parse::<ModelShape>().unwrap_err().to_string();
            assert!(error.contains("resnet50") && error.lines().count() == 1, "{error}");
        }
    }
}
