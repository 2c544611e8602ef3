//! What a side does in a step, on one rank.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use brevity::collectives::sparse::Wire;
use brevity::compress::feedback::Residual;
use brevity::compress::generator::Generator;
use brevity::compress::select::TopKScratch;
use brevity::compress::{Density, SparseVec};
use brevity::{GradientExchange, Group, PolicyRules, PutBack, ReduceOp};

use crate::collective::Number;
use crate::models::{ModelShape, TensorShape};
use crate::perf::{Sparse, SparseCollective, Workload, check_alike, multiply_for};
use crate::{Error, Result};

/// What a rank does in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Does {
    /// A step of an exchange, from the first gradient to the last average.
    Step,
    /// The same while the caller computes between the gradients; the time of computing is taken off.
    Computing,
    /// The kernels of such a step, and its gTop-k all-reduce, by themselves.
    Parts,
    /// A gTop-k all-reduce of entries that have been selected.
    Gtopk,
    /// A dense all-reduce.
    Dense,
}

impl Does {
    /// The name on the command line of a rank.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Computing => "computing",
            Self::Parts => "parts",
            Self::Gtopk => "gtopk",
            Self::Dense => "dense",
        }
    }
}

/// The gradients of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gradients {
    /// So many vectors of so many elements.
    Vectors(usize, usize),
    /// A matrix of so many rows and columns.
    Matrix(usize, usize),
    /// ResNet-50's.
    Resnet50,
}

impl Gradients {
    /// A hundredth of them, if `quick`; ResNet-50 stays.
    pub const fn scaled(self, quick: bool) -> Self {
        match self {
            Self::Vectors(count, length) if quick => Self::Vectors(count, length / 100),
            Self::Matrix(rows, columns) if quick => Self::Matrix(rows / 10, columns / 10),
            as_it_is => as_it_is,
        }
    }

    /// The tensors, from the first layer on.
    pub fn tensors(self) -> Vec<TensorShape> {
        match self {
            Self::Vectors(count, length) => ModelShape::Vectors(count, length).tensors(),
            Self::Matrix(rows, columns) => ModelShape::Matrix(rows, columns).tensors(),
            Self::Resnet50 => ModelShape::Resnet50.tensors(),
        }
    }

    /// Bytes of all.
    pub fn bytes(self) -> usize {
        let elements = |(_, shape): &TensorShape| shape.iter().product::<usize>();
        size_of::<f32>() * self.tensors().iter().map(elements).sum::<usize>()
    }

    /// Rows and columns, where there is one matrix; else one row of all.
    pub fn matrix(self) -> (usize, usize) {
        match self {
            Self::Matrix(rows, columns) => (rows, columns),
            others => (1, others.bytes() / size_of::<f32>()),
        }
    }
}

impl fmt::Display for Gradients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vectors(count, length) => write!(f, "{count}x{length}"),
            Self::Matrix(rows, columns) => write!(f, "matrix:{rows}x{columns}"),
            Self::Resnet50 => f.write_str("resnet50"),
        }
    }
}

impl FromStr for Gradients {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.parse()? {
            ModelShape::Resnet50 => Ok(Self::Resnet50),
            ModelShape::Matrix(rows, columns) => Ok(Self::Matrix(rows, columns)),
            ModelShape::Vectors(count, length) => Ok(Self::Vectors(count, length)),
            other => {
                let expected = "expected resnet50, COUNTxLENGTH or matrix:ROWSxCOLUMNS";
                Err(Error::Arguments(format!("{other}: {expected}")))
            }
        }
    }
}

/// The bytes of gradients of a bucket of low rank, where a step overlaps with computing.
const LOW_RANK_BUCKET_BYTES: usize = 25 << 20;

/// How long a caller computes beside an exchange.
const COMPUTING: Duration = Duration::from_millis(100);

/// A rank's part in the steps of a side.
pub trait Work {
    /// Does a step once all ranks are ready for it. Returns its microseconds.
    ///
    /// # Errors
    /// If a rank is lost, or something is wrong.
    fn step(&mut self, group: &Group) -> Result<f64>;

    /// The time of the kernels in all steps so far, if it is known apart: adding gradients to residuals and
    /// selecting, or projecting, and writing averages and residuals.
    fn kernels(&self) -> Option<Duration> {
        None
    }
}

/// Checks the first result.
fn checked(is_checked: &mut bool, check: impl FnOnce() -> Result<()>) -> Result<()> {
    if std::mem::replace(is_checked, true) { Ok(()) } else { check() }
}

/// Standard normal gradients of this rank.
fn normal(group: &Group, tensors: &[TensorShape]) -> Vec<Vec<f32>> {
    let mut generator = Generator::for_stream(3, u64::from(group.rank()));
    let gradient = |(_, shape): &TensorShape| {
        let mut gradient = vec![0.0; shape.iter().product()];
        generator.fill_normal(&mut gradient);
        gradient
    };
    tensors.iter().map(gradient).collect()
}

/// Steps of an exchange. Gradients are the same in each, and are handed in from the last tensor on.
pub struct Steps {
    exchange: GradientExchange,
    source: Vec<Vec<f32>>,
    gradients: Vec<Vec<f32>>,
    /// Computed before each tensor is handed in.
    computing: Duration,
    kernels: Duration,
    is_checked: bool,
}

impl Steps {
    /// An exchange by these rules, around `COMPUTING` if the caller computes.
    ///
    /// # Errors
    /// If no rule is for a tensor, or the exchange refuses its policy.
    pub fn new(group: &Group, gradients: Gradients, rules: &str, computes: bool) -> Result<Self> {
        let (tensors, rules): (_, PolicyRules) = (gradients.tensors(), rules.parse()?);
        let mut builder = GradientExchange::builder(group);
        for (name, shape) in &tensors {
            builder = builder.tensor(name, shape, rules.policy(name, shape)?);
        }
        if gradients == Gradients::Resnet50 && rules.to_string().contains("low-rank") {
            // One bucket of all could not leave before the last gradient.
            builder = builder.bucket_bytes(LOW_RANK_BUCKET_BYTES);
        }
        let source = normal(group, &tensors);
        let computing = if computes { COMPUTING / tensors.len() as u32 } else { Duration::ZERO };
        let exchange = builder.build()?;
        let kernels = Duration::ZERO;
        Ok(Self { exchange, gradients: source.clone(), source, computing, kernels, is_checked: false })
    }
}

impl Work for Steps {
    fn step(&mut self, group: &Group) -> Result<f64> {
        self.gradients.iter_mut().zip(&self.source).for_each(|(gradient, source)| {
            gradient.copy_from_slice(source);
        });
        group.barrier()?;
        let (begun, mut computed) = (Instant::now(), Duration::ZERO);
        let mut step = self.exchange.begin()?;
        for (tensor, gradient) in self.gradients.iter().enumerate().rev() {
            if !self.computing.is_zero() {
                let begun = Instant::now();
                multiply_for(self.computing);
                computed += begun.elapsed();
            }
            step.ready(tensor, gradient)?;
        }
        let report = step.finish(&mut self.gradients)?;
        let time = (begun.elapsed() - computed).as_secs_f64() * 1e6;
        self.kernels += report.total(|bucket| bucket.select + bucket.apply);
        checked(&mut self.is_checked, || check_alike(group, &self.gradients))?;
        Ok(time)
    }

    fn kernels(&self) -> Option<Duration> {
        Some(self.kernels)
    }
}

/// What a gTop-k step of all tensors in one bucket cannot do without: selecting, the collective, putting
/// back and writing averages. Each is timed by itself.
pub struct Parts {
    gradients: Vec<Vec<f32>>,
    residuals: Vec<Residual>,
    selected: Vec<SparseVec>,
    averages: Vec<Vec<f32>>,
    density: Density,
    scratch: TopKScratch,
    is_checked: bool,
}

impl Parts {
    /// All tensors with this density.
    ///
    /// # Errors
    /// [`Error::Arguments`] for no density.
    pub fn new(group: &Group, gradients: Gradients, density: &str) -> Result<Self> {
        let refused = || Error::Arguments(format!("{density}: expected a density"));
        let density = density.parse().ok().and_then(|share| Density::new(share).ok()).ok_or_else(refused)?;
        let gradients = normal(group, &gradients.tensors());
        let of_each = || gradients.iter().map(Vec::len);
        Ok(Self {
            residuals: of_each().map(Residual::new).collect(),
            selected: of_each().map(SparseVec::new).collect(),
            averages: of_each().map(|count| vec![0.0; count]).collect(),
            gradients,
            density,
            scratch: TopKScratch::new(),
            is_checked: false,
        })
    }

    fn select(&mut self) -> Result<usize> {
        let mut entries = 0;
        for ((residual, gradient), out) in
            self.residuals.iter_mut().zip(&self.gradients).zip(&mut self.selected)
        {
            let k = self.density.entries(gradient.len());
            residual.feed_top_k(&gradient[..], k, out, &mut self.scratch).map_err(of_kernel)?;
            entries += k;
        }
        Ok(entries)
    }

    /// The selected entries of all tensors, one after another.
    fn joined(&self) -> SparseVec {
        let mut joined = SparseVec::new(self.gradients.iter().map(Vec::len).sum());
        let mut start = 0;
        for (selected, gradient) in self.selected.iter().zip(&self.gradients) {
            selected.iter().for_each(|(index, value)| joined.push(start + index, value));
            start += gradient.len() as u32;
        }
        joined
    }

    fn apply(&mut self, sum: &SparseVec, put_back: &SparseVec, share: f32) -> Result<()> {
        let (mut start, mut own) = (0, SparseVec::new(0));
        for (residual, average) in self.residuals.iter_mut().zip(&mut self.averages) {
            let range = start..start + average.len();
            own.reset(average.len());
            let returned = put_back.view().within(range.clone());
            returned.iter().for_each(|(index, value)| own.push(index - start as u32, value));
            residual.put_back(own.view()).map_err(of_kernel)?;
            average.fill(0.0);
            let delivered = sum.view().within(range.clone());
            delivered.iter().for_each(|(index, value)| average[index as usize - start] = share * value);
            start = range.end;
        }
        Ok(())
    }
}

/// The error of a kernel.
fn of_kernel(error: brevity::compress::Error) -> Error {
    Error::contestant("the kernels", error.to_string())
}

impl Work for Parts {
    fn step(&mut self, group: &Group) -> Result<f64> {
        group.barrier()?;
        let begun = Instant::now();
        let k = self.select()?;
        let selecting = begun.elapsed();
        let joined = self.joined();
        group.barrier()?;
        let begun = Instant::now();
        let outcome = group.gtopk_all_reduce(joined.view(), k, PutBack::Conserving)?;
        let communicating = begun.elapsed();
        group.barrier()?;
        let begun = Instant::now();
        self.apply(&outcome.result, &outcome.put_back, 1.0 / group.world_size() as f32)?;
        let time = (selecting + communicating + begun.elapsed()).as_secs_f64() * 1e6;
        checked(&mut self.is_checked, || check_alike(group, &self.averages))?;
        Ok(time)
    }
}

/// A gTop-k all-reduce of entries that have been selected. Its first result is checked.
pub struct Collective {
    sparse: Sparse,
    bytes: usize,
    is_checked: bool,
}

/// The share of entries of the collective alone.
const SHARE: f64 = 0.001;

impl Collective {
    /// On the wire `how`: `pairs`, or a format of values.
    ///
    /// # Errors
    /// [`Error::Arguments`] for no such format.
    pub fn new(group: &Group, gradients: Gradients, how: &str) -> Result<Self> {
        let wire = match how {
            "pairs" => Wire::Pairs,
            format => Wire::Coded(format.parse().map_err(of_kernel)?),
        };
        let density = Density::new(SHARE).map_err(of_kernel)?;
        let (count, which) = (gradients.bytes() / size_of::<f32>(), SparseCollective::GtopkAllReduce);
        let sparse = Sparse::new(group, (which, wire), count, density)?;
        Ok(Self { sparse, bytes: gradients.bytes(), is_checked: false })
    }
}

impl Work for Collective {
    fn step(&mut self, group: &Group) -> Result<f64> {
        self.sparse.prepare();
        group.barrier()?;
        let begun = Instant::now();
        self.sparse.run(group)?;
        let time = begun.elapsed().as_secs_f64() * 1e6;
        let check = || self.sparse.check().map_err(|wrong| wrong.of(group.rank(), "gtopk", self.bytes));
        checked(&mut self.is_checked, check)?;
        Ok(time)
    }
}

/// A dense all-reduce: of ones, whose sum is checked, then of zeros.
pub struct Dense<T> {
    vector: Vec<T>,
    is_checked: bool,
}

impl<T: Number> Dense<T> {
    /// Of as many elements as the gradients have.
    pub fn new(gradients: Gradients) -> Self {
        Self { vector: vec![T::of(1.0); gradients.bytes() / size_of::<f32>()], is_checked: false }
    }
}

impl<T: Number> Work for Dense<T> {
    fn step(&mut self, group: &Group) -> Result<f64> {
        group.barrier()?;
        let begun = Instant::now();
        group.all_reduce(&mut self.vector, ReduceOp::Sum)?;
        let time = begun.elapsed().as_secs_f64() * 1e6;
        let sum = T::of(group.world_size() as f32);
        let check = || {
            let wrong = self.vector.iter().find(|value| **value != sum);
            let told = |value: &T| Error::contestant("dense", format!("a sum of ones is {value:?}"));
            wrong.map_or(Ok(()), |value| Err(told(value)))
        };
        if !self.is_checked {
            checked(&mut self.is_checked, check)?;
            self.vector.fill(T::of(0.0));
        }
        Ok(time)
    }
}
