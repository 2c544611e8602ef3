//! The arguments of `brevity perf`, checked before any rank is started.

use std::path::PathBuf;
use std::time::Duration;

use brevity::collectives::sparse::Wire;
use brevity::compress::Density;
use brevity::compress::quantise::Values;
use brevity::transport::MAX_WORLD_SIZE;
use brevity::transport::bootstrap::Choice;

use super::error::{Error, Result};
use super::way::{Over, Way};
use super::{exchange, kernels, scaling};
use brevity_bench::collective::Collective;
use brevity_bench::output::{Outputs, svg_file};
use brevity_bench::perf::{Benchmark, Case, Dtype, FewBits};
use brevity_bench::size::{Size, SizeRange};

/// The default number of ranks.
const DEFAULT_RANKS: u32 = 2;

/// Bytes that the vectors of all simulated ranks have together at most, unless a size is given.
const MOST_SIMULATED: usize = 1 << 30;

/// The default of the largest size, in bytes.
const DEFAULT_MAX: usize = 4 << 20;

/// The largest size where the vectors of all simulated ranks fit nothing longer.
const DEFAULT_MIN: usize = 4;

const BARRIER: Benchmark = Benchmark::Dense(Collective::Barrier);

/// The default number of elements of vectors that are made sparse, and of matrices.
const DEFAULT_SPARSE_ELEMENTS: usize = 1 << 20;

/// The default share of entries kept.
const DEFAULT_DENSITY: f64 = 0.001;

/// Measures an operation between ranks and prints a table.
///
/// Starts its own ranks on this host, unless a launcher has started this one already.
#[derive(Clone, Debug, clap::Args)]
pub struct PerfArguments {
    /// What to measure: latency, bandwidth, bibandwidth, put, get, barrier, broadcast, reduce, allreduce,
    /// reducescatter, allgather, gather, scatter, alltoall, allgatherv, gatherv, scatterv, alltoallv,
    /// reducescatterv, randomk-allreduce, randomblock-allreduce, block-allreduce, hierarchical-allreduce,
    /// sparse-allgather, sparse-reducescatter, topk-allreduce, split-allreduce, gtopk-allreduce,
    /// oktopk-allreduce, lowrank-allreduce, quantised-allreduce, vote-allreduce, or compress for the kernels
    /// of compression, which need no ranks; or exchange, a step of a model's gradient exchange; or scaling,
    /// the time of sums of 4, 8, .. up to --ranks simulated ranks
    pub name: String,
    /// Ranks to start on this host [default: 2]
    #[arg(short = 'n', long, value_name = "N", alias = "np")]
    pub ranks: Option<u32>,
    /// auto, ucx or tcp [default: what BREVITY_TRANSPORT says, else auto]; or sim, the simulated network, on
    /// which all ranks are in this process and time is virtual
    #[arg(long, value_name = "NAME")]
    pub transport: Option<Over>,
    /// Seconds a message takes on sim [default: 20e-6]
    #[arg(long, value_name = "S")]
    pub alpha: Option<f64>,
    /// Seconds a byte takes on sim [default: 8e-9]
    #[arg(long, value_name = "S")]
    pub beta: Option<f64>,
    /// Start collectives, compute for as long as they take, and print how much of them that hides
    #[arg(long)]
    pub overlap: bool,
    /// Tests of the started call while the ranks compute [default: 0]
    #[arg(long, value_name = "N")]
    pub tests: Option<u32>,
    /// How many seconds ranks may go on after one has failed or was told to end, before they are killed
    /// [default: 30]
    #[arg(long, value_name = "SECONDS", value_parser = crate::run::grace)]
    pub grace: Option<Duration>,
    /// Bytes, as 4:4M: the powers of two from MIN to MAX
    #[arg(long, value_name = "MIN:MAX")]
    pub size: Option<SizeRange>,
    /// Elements of the vector, as 25M, in place of a range of sizes; compress takes 25 million unless told
    /// otherwise
    #[arg(long, value_name = "N")]
    pub elements: Option<Size>,
    /// Share of entries that is kept, a row for each [default: 0.001]
    #[arg(long, value_name = "D", value_delimiter = ',')]
    pub density: Vec<f64>,
    /// Rank of the factors of lowrank-allreduce [default: 4]
    #[arg(long, value_name = "R")]
    pub rank: Option<usize>,
    /// Format of the values of quantised-allreduce, and of sparse collectives, with packed indices: f32, f16,
    /// bf16, eight-bit, one-bit-mean, one-bit-min, two-bit-mean, two-bit-min, one-bit-columns,
    /// one-bit-columns-C with C columns, ternary, qsgd-S with S levels [default: pairs of index and value, 8
    /// bytes each]
    #[arg(long, value_name = "FORMAT")]
    pub values: Option<String>,
    /// Model whose gradients exchange averages: resnet50, vgg16, lstm, transformer, COUNTxLENGTH for as many
    /// vectors, or matrix:ROWSxCOLUMNS for one matrix [default: resnet50]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// How its tensors travel, as "dims<2=dense; *=gtopk:0.001"; a row for each [default: dense, gtopk:0.001
    /// and low-rank:4 for all]
    #[arg(long, value_name = "RULES")]
    pub policy: Vec<String>,
    /// Bytes of gradients of a bucket, as 25M [default: what an exchange takes]
    #[arg(long, value_name = "BYTES")]
    pub bucket_bytes: Option<Size>,
    /// Type of the elements of dense collectives, and of the gradients of exchange: f32, f64, f16 or bf16
    /// [default: f32]
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<String>,
    /// Iterations timed for each row [default: 1000 up to 8K, 100 above; of exchange 20, and 5 on sim]
    #[arg(long, value_name = "I")]
    pub iterations: Option<u32>,
    /// Iterations before those [default: a tenth]
    #[arg(long, value_name = "W")]
    pub warmup: Option<u32>,
    /// Check the result of every iteration, not of the first alone
    #[arg(long)]
    pub verify: bool,
    /// Write the figures to a file; "-" prints them in place of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the timed steps of exchange to a file that Perfetto opens (ui.perfetto.dev): what each rank did
    /// when, and the bytes of each bucket
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,
    /// Draw the figures
    #[arg(long, value_name = "FILE.svg", value_parser = svg_file)]
    pub plot: Option<PathBuf>,
    /// Groups of kernels that compress measures [default: all]
    #[arg(long, value_name = "GROUP", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Keep table, figures and drawing of compress in a folder, under the day
    #[arg(long, value_name = "FOLDER")]
    pub record: Option<PathBuf>,
}

/// Arguments that are consistent with each other.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is measured.
    pub benchmark: Benchmark,
    /// How it is measured.
    pub way: Way,
    /// The type of the elements, if there are any.
    pub dtype: Dtype,
    /// The number of ranks, if given.
    pub ranks: Option<u32>,
    /// The transport, if given.
    pub transport: Option<Choice>,
    /// How long ranks may go on, if it was said.
    pub grace: Option<Duration>,
    /// The rows of the table.
    pub cases: Vec<Case>,
    /// Whether every iteration is checked.
    pub verify: bool,
    /// The file for the figures.
    pub json: Option<PathBuf>,
    /// The file for the drawing.
    pub plot: Option<PathBuf>,
}

/// The ranks that a measurement needs.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Their number, if given.
    pub ranks: Option<u32>,
    /// The smallest number.
    pub fewest: u32,
    /// The transport, if given.
    pub transport: Option<Choice>,
    /// How long ranks may go on, if it was said.
    pub grace: Option<Duration>,
}

impl Wanted {
    /// The number of ranks to start.
    pub fn ranks_to_start(&self) -> u32 {
        self.ranks.unwrap_or(DEFAULT_RANKS)
    }
}

impl Plan {
    /// The ranks that it needs.
    pub fn wanted(&self) -> Wanted {
        let Self { ranks, transport, grace, .. } = *self;
        Wanted { ranks, fewest: self.benchmark.fewest_ranks(), transport, grace }
    }

    /// Opens the requested files.
    ///
    /// # Errors
    /// [`Error::Arguments`] for a file that can't be written.
    pub fn open_outputs(&self) -> Result<Outputs> {
        Ok(Outputs::open(self.json.as_deref(), self.plot.as_deref())?)
    }
}

impl PerfArguments {
    /// The number of ranks to start or to simulate.
    pub fn ranks_to_start(&self) -> u32 {
        self.ranks.unwrap_or(DEFAULT_RANKS)
    }

    /// Checks the arguments against each other.
    ///
    /// # Errors
    /// [`Error::Arguments`], in one line with the remedy.
    pub fn plan(self) -> Result<Plan> {
        let benchmark = self.benchmark()?;
        let dtype: Dtype = self.dtype.as_deref().map_or(Ok(Dtype::default()), str::parse)?;
        self.check(benchmark, dtype)?;
        let cases = self.cases(benchmark, dtype)?;
        let way = Way::of(&self, benchmark)?;
        let transport = match self.transport {
            Some(Over::Ranks(choice)) => Some(choice),
            Some(Over::Simulated) | None => None,
        };
        let Self { ranks, grace, verify, json, plot, .. } = self;
        Ok(Plan { benchmark, way, dtype, ranks, transport, grace, cases, verify, json, plot })
    }

    fn benchmark(&self) -> Result<Benchmark> {
        let named: Benchmark = self.name.parse().map_err(|error| {
            let [kernels, exchange, scaling] = [kernels::NAME, exchange::NAME, scaling::NAME];
            Error::Arguments(format!(
                "{error}; or {kernels} for the kernels of compression, or {exchange}, or {scaling}"
            ))
        })?;
        let named = self.with_rank(named)?;
        let Some(values) = &self.values else { return Ok(named) };
        let read = || -> Result<Values> {
            values.parse().map_err(|error| Error::Arguments(format!("--values {values}: {error}")))
        };
        match named {
            Benchmark::Sparse(collective, _) => Ok(Benchmark::Sparse(collective, Wire::Coded(read()?))),
            Benchmark::FewBits(FewBits::Quantised(_)) => Ok(Benchmark::FewBits(FewBits::Quantised(read()?))),
            _ => {
                let names = Benchmark::names_of(|benchmark| matches!(benchmark, Benchmark::Sparse(..)));
                let why = format!("--values goes with {names}, quantised-allreduce: {named} has one format");
                Err(Error::Arguments(why))
            }
        }
    }

    fn with_rank(&self, named: Benchmark) -> Result<Benchmark> {
        let Some(rank) = self.rank else { return Ok(named) };
        refuse(named.rank().is_none(), || {
            let names = Benchmark::names_of(|benchmark| benchmark.rank().is_some());
            format!("--rank goes with {names}: {named} has no factors")
        })?;
        refuse(rank == 0, || "--rank 0: expected at least 1".into())?;
        Ok(Benchmark::LowRank(rank))
    }

    fn check(&self, benchmark: Benchmark, dtype: Dtype) -> Result<()> {
        let fewest = benchmark.fewest_ranks();
        let ranks = self.ranks.unwrap_or(fewest);
        refuse(!(fewest..=MAX_WORLD_SIZE).contains(&ranks), || {
            format!("--ranks {ranks}: {benchmark} takes from {fewest} to {MAX_WORLD_SIZE} ranks")
        })?;
        let without_elements = !matches!(benchmark, Benchmark::Dense(_));
        refuse(without_elements && dtype != Dtype::F32, || {
            format!("--dtype {}: {benchmark} has no other elements than f32", dtype.name())
        })?;
        self.check_iterations()?;
        let has_size = self.size.is_some() || self.elements.is_some() || self.dtype.is_some();
        refuse(benchmark == BARRIER && has_size, || {
            "--size, --elements and --dtype go with vectors: a barrier has none".into()
        })?;
        refuse(!benchmark.is_sparse() && !self.density.is_empty(), || {
            format!(
                "--density goes with {}: {benchmark} drops nothing",
                Benchmark::names_of(|benchmark| benchmark.is_sparse())
            )
        })?;
        refuse(benchmark.is_paired() && self.elements.is_some(), || {
            format!("--elements goes with vectors: give {benchmark} a --size in bytes")
        })?;
        refuse(self.size.is_some() && self.elements.is_some(), || {
            "--size and --elements say the same thing: give one of them".into()
        })?;
        let has_model = self.model.is_some() || !self.policy.is_empty() || self.bucket_bytes.is_some();
        refuse(has_model, || {
            format!("--model, --policy and --bucket-bytes go with exchange: {benchmark} has no model")
        })?;
        refuse(self.trace.is_some(), || format!("--trace goes with exchange: {benchmark} has no steps"))?;
        refuse(!self.only.is_empty() || self.record.is_some(), || {
            format!("--only and --record go with compress: {benchmark} has one table")
        })
    }

    /// Checks that at least one iteration is timed.
    ///
    /// # Errors
    /// [`Error::Arguments`].
    pub fn check_iterations(&self) -> Result<()> {
        refuse(self.iterations == Some(0), || "--iterations 0: expected at least 1".into())
    }

    fn cases(&self, benchmark: Benchmark, dtype: Dtype) -> Result<Vec<Case>> {
        let densities: Vec<_> = match (benchmark.is_sparse(), &self.density[..]) {
            (false, _) => vec![None],
            (true, []) => vec![Some(density(DEFAULT_DENSITY)?)],
            (true, shares) => shares.iter().map(|&share| density(share).map(Some)).collect::<Result<_>>()?,
        };
        let cases = self.sizes(benchmark, dtype)?.into_iter().flat_map(|bytes| {
            let iterations = self.iterations.map_or(default_iterations(bytes), |count| count as usize);
            let warmup = self.warmup.map_or(iterations / 10, |count| count as usize);
            densities.iter().map(move |&density| Case { bytes, density, iterations, warmup })
        });
        Ok(cases.collect())
    }

    /// The largest size that is measured unless one is given: a power of two, at most `most`.
    fn default_max(&self, benchmark: Benchmark, most: usize) -> usize {
        if self.transport != Some(Over::Simulated) {
            return most;
        }
        let ranks = self.ranks_to_start();
        let fits = |bytes: &usize| self.longest(benchmark, *bytes) <= MOST_SIMULATED / ranks as usize;
        (2..=most.ilog2()).map(|power| 1 << power).take_while(fits).last().unwrap_or(DEFAULT_MIN)
    }

    /// The bytes of the longest vector that a rank has in a row of so many.
    fn longest(&self, benchmark: Benchmark, bytes: usize) -> usize {
        let ranks = self.ranks_to_start();
        match benchmark {
            Benchmark::Dense(collective) => collective.longest(bytes, ranks),
            Benchmark::Varying(which) => which.longest(bytes, ranks),
            Benchmark::Sparse(collective, _) if collective.gathers() => {
                let share = self.density.iter().copied().reduce(f64::max).unwrap_or(DEFAULT_DENSITY);
                // An index and a value for each element that is kept.
                bytes.max((2.0 * share * bytes as f64 * f64::from(ranks)) as usize)
            }
            _ => bytes,
        }
    }

    fn sizes(&self, benchmark: Benchmark, dtype: Dtype) -> Result<Vec<usize>> {
        if benchmark == BARRIER {
            return Ok(vec![0]);
        }
        let unit = if benchmark.is_paired() { 1 } else { dtype.bytes() };
        match (self.size, self.elements) {
            (_, Some(Size(elements))) => {
                refuse(u32::try_from(elements).is_err(), || {
                    format!(
                        "--elements {}: expected at most 4095M, because indices have 32 bits",
                        Size(elements)
                    )
                })?;
                Ok(vec![elements * unit])
            }
            (None, None) if benchmark.is_sparse() || benchmark.rank().is_some() => {
                Ok(vec![self.default_max(benchmark, DEFAULT_SPARSE_ELEMENTS * unit)])
            }
            (size, None) => {
                let max = self.default_max(benchmark, DEFAULT_MAX).max(unit);
                let range = size.unwrap_or(SizeRange { min: unit, max });
                let sizes: Vec<_> = range.sizes().collect();
                refuse(sizes[0] < unit, || {
                    format!("--size from {}: an {} has {unit} bytes", sizes[0], dtype.name())
                })?;
                Ok(sizes)
            }
        }
    }
}

pub(super) fn refuse(bad: bool, message: impl FnOnce() -> String) -> Result<()> {
    if bad { Err(Error::Arguments(message())) } else { Ok(()) }
}

fn density(share: f64) -> Result<Density> {
    Density::new(share)
        .map_err(|_| Error::Arguments(format!("--density {share}: expected above 0 and at most 1")))
}

fn default_iterations(bytes: usize) -> usize {
    if bytes <= 8 << 10 { 1000 } else { 100 }
}

#[cfg(test)]
#[path = "arguments_tests.rs"]
mod tests;
