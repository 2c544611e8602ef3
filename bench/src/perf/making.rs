//! The workloads of a row, one for each rank. Ranks of one process share what they expect.

use std::cell::OnceCell;
use std::sync::Arc;

use brevity::Group;
use brevity::collectives::sparse::Draw;
use brevity::compress::Density;

use super::workload::Workload;
use super::{
    Benchmark, Case, Dense, Dtype, Factored, InBlocks, InFactors, InFewBits, InHosts, InLengths, InParts,
    SentPart, Sparse, of_dtype, sparse,
};
use crate::collective::{Collective, Number, Place, ROOT};
use crate::{Error, Result};

/// Makes the workload of a rank.
pub(super) type Make = Box<dyn Fn(&Group) -> Result<Box<dyn Workload>>>;

/// How ranks of a group of this size make their workloads.
///
/// # Errors
/// [`Error::Arguments`] for messages between pairs, and if the case lacks a density; if vectors are too long.
pub(super) fn maker(world_size: u32, benchmark: Benchmark, dtype: Dtype, case: Case) -> Result<Make> {
    let count = case.bytes / size_of::<f32>();
    let density = || case.density.ok_or_else(|| Error::Arguments(format!("{benchmark} needs a density")));
    Ok(match benchmark {
        Benchmark::Dense(collective) => of_dtype!(dtype, dense(world_size, collective, case)),
        Benchmark::Varying(which) => {
            let of_all = which.expected_on_all(world_size, count);
            making(move |group| Ok(InLengths::new(group, which, count, of_all.clone())))
        }
        Benchmark::Part(which) => part(world_size, which, count, density()?)?,
        Benchmark::Sparse(collective, wire) => {
            let (which, density) = ((collective, wire), density()?);
            let expected = sparse::Expected::new(world_size, which, count, density);
            making(move |group| Ok(Sparse::expecting(group, which, count, density, &expected)?))
        }
        Benchmark::FewBits(which) => {
            let expected = which.expected(world_size, count)?;
            making(move |group| Ok(InFewBits::new(group, which, expected.clone())))
        }
        Benchmark::LowRank(rank) => {
            let factored = Arc::new(Factored::new(count, rank));
            making(move |group| InFactors::new(group, factored.clone()))
        }
        Benchmark::Latency
        | Benchmark::Bandwidth
        | Benchmark::Bibandwidth
        | Benchmark::Put
        | Benchmark::Get => {
            return Err(Error::Arguments(format!("{benchmark} is between the ranks of a pair")));
        }
    })
}

fn making<W: Workload + 'static>(make: impl Fn(&Group) -> Result<W> + 'static) -> Make {
    Box::new(move |group| Ok(Box::new(make(group)?)))
}

fn dense<T: Number>(world_size: u32, collective: Collective, case: Case) -> Make {
    let count = case.bytes / size_of::<T>();
    let expected = move |rank| -> Arc<[T]> { collective.expected(Place { rank, world_size }, count).into() };
    let of_all = collective.has_one_output().then(|| expected(ROOT));
    making(move |group| {
        let expected = of_all.clone().unwrap_or_else(|| expected(group.rank()));
        Dense::expecting(group, collective, count, expected)
    })
}

fn part(world_size: u32, which: SentPart, count: usize, density: Density) -> Result<Make> {
    let random = |draw| {
        let sums = InParts::sums(world_size, count);
        making(move |group| Ok(InParts::new(group, draw, density, sums.clone())))
    };
    Ok(match which {
        SentPart::RandomK => random(Draw::Scattered),
        SentPart::RandomBlock => random(Draw::Block),
        SentPart::Blocks => {
            let sums = InBlocks::sums(world_size, count, density)?;
            making(move |group| Ok(InBlocks::new(group, density, sums.clone())?))
        }
        SentPart::Hosts => {
            // Which ranks share a host is known to the group.
            let (k, expected) = (density.entries(count), OnceCell::new());
            making(move |group| {
                let expected = expected.get_or_init(|| InHosts::expected(&group.host_numbers(), count, k));
                Ok(InHosts::new(group, count, k, expected.clone()))
            })
        }
    })
}
