//! Every collective of a group as a started call with its oracle, for ranks that can't block.

mod compressed;

use brevity::collectives::dense::{self, AllGather, Broadcast, Lengths};
use brevity::collectives::sparse::Coder;
use brevity::collectives::{Algorithm, Chunk, Description, Operation, Result};
use brevity::compress::SparseVec;
use brevity::compress::low_rank::{Batch, LowRank};
use brevity::{Element, GradientExchange, Group, Policy, PutBack, ReduceOp};

use crate::{oracle, suite};

/// The elements of vectors, and the entries of sparse ones.
const COUNT: usize = 24;
const K: usize = 4;

/// The shape of low-rank matrices.
const SHAPE: (usize, usize) = (4, 6);

/// A collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// A barrier.
    Barrier,
    /// A broadcast; the root changes from turn to turn.
    Broadcast,
    /// An all-reduce by the cheapest algorithm.
    AllReduce,
    /// An all-reduce by this algorithm.
    AllReduceBy(Algorithm),
    /// An all-gather.
    AllGather,
    /// An all-gather of varying lengths.
    AllGatherVarying,
    /// A sparse all-gather.
    SparseAllGather,
    /// A sparse reduce-scatter; on a coded wire, or as pairs.
    SparseReduceScatter(bool),
    /// A top-k all-reduce by the cheapest algorithm; on a coded wire, or as pairs.
    TopK(bool),
    /// A top-k all-reduce by this algorithm.
    TopKBy(Algorithm),
    /// A gTop-k all-reduce with this rule.
    Gtopk(PutBack),
    /// A gTop-k all-reduce on a coded wire.
    CodedGtopk,
    /// The first step of an Ok-Topk all-reduce.
    OkTopk,
    /// A random-k all-reduce.
    RandomK,
    /// A block-sparse all-reduce.
    Blocks,
    /// A hierarchical all-reduce, in which each rank is a host of its own.
    Hierarchical,
    /// A quantised all-reduce.
    Quantised,
    /// A majority vote.
    Vote,
    /// A low-rank all-reduce.
    LowRank,
    /// A step of a gradient exchange of a dense tensor, a top-k, a gTop-k and a low-rank one.
    Exchange,
    /// A duplicate, and a call on it.
    Duplicate,
    /// A split in two, and a call on this rank's half.
    Split,
}

impl Collective {
    /// All of them.
    pub const ALL: [Self; 30] = [
        Self::Barrier,
        Self::Broadcast,
        Self::AllReduce,
        Self::AllReduceBy(Algorithm::Direct),
        Self::AllReduceBy(Algorithm::Doubling),
        Self::AllReduceBy(Algorithm::Halving),
        Self::AllGather,
        Self::AllGatherVarying,
        Self::SparseAllGather,
        Self::SparseReduceScatter(false),
        Self::SparseReduceScatter(true),
        Self::TopK(false),
        Self::TopK(true),
        Self::TopKBy(Algorithm::Bruck),
        Self::TopKBy(Algorithm::Direct),
        Self::TopKBy(Algorithm::Doubling),
        Self::Gtopk(PutBack::Conserving),
        Self::Gtopk(PutBack::Published),
        Self::Gtopk(PutBack::MergerKeeps),
        Self::CodedGtopk,
        Self::OkTopk,
        Self::RandomK,
        Self::Blocks,
        Self::Hierarchical,
        Self::Quantised,
        Self::Vote,
        Self::LowRank,
        Self::Exchange,
        Self::Duplicate,
        Self::Split,
    ];

    /// Starts it, and waits for its end. The numbers depend on `turn`, which is equal on all ranks.
    ///
    /// # Errors
    /// Those of the collective.
    ///
    /// # Panics
    /// If the result is wrong.
    pub async fn run(self, group: &Group, turn: u32) -> Result<()> {
        let inputs = Inputs { rank: group.rank(), size: group.world_size(), turn };
        match self {
            Self::Barrier => barrier(group).await,
            Self::Broadcast => broadcast(group, &inputs).await,
            Self::AllReduce => {
                let (sum, result) = group.start_all_reduce(inputs.own(), ReduceOp::Sum).await;
                result.map(|()| assert_eq!(sum, inputs.sum()))
            }
            Self::AllReduceBy(algorithm) => dense_sum(group, &inputs, algorithm).await,
            Self::AllGather => all_gather(group, &inputs).await,
            Self::AllGatherVarying => all_gather_varying(group, &inputs).await,
            Self::SparseAllGather => gather_sparse(group, &inputs).await,
            Self::SparseReduceScatter(coded) => compressed::reduce_scatter(group, &inputs, coded).await,
            Self::TopK(coded) => compressed::topk(group, &inputs, None, coded).await,
            Self::TopKBy(algorithm) => compressed::topk(group, &inputs, Some(algorithm), false).await,
            Self::Gtopk(rule) => compressed::gtopk(group, &inputs, rule, false).await,
            Self::CodedGtopk => compressed::gtopk(group, &inputs, PutBack::Conserving, true).await,
            Self::OkTopk => compressed::ok_topk(group, &inputs).await,
            Self::RandomK => compressed::random_k(group, &inputs).await,
            Self::Blocks => compressed::blocks(group, &inputs).await,
            Self::Hierarchical => compressed::hierarchical(group, &inputs).await,
            Self::Quantised => compressed::quantised(group, &inputs).await,
            Self::Vote => compressed::vote(group, &inputs).await,
            Self::LowRank => low_rank(group, &inputs).await,
            Self::Exchange => exchange(group, &inputs).await,
            Self::Duplicate => divide(group, &inputs, 1).await,
            Self::Split => divide(group, &inputs, 2).await,
        }
    }
}

/// What the ranks of a call pass to it.
struct Inputs {
    rank: u32,
    size: u32,
    turn: u32,
}

impl Inputs {
    fn of(&self, rank: u32) -> Vec<f32> {
        oracle::vector(rank + 100 * self.turn, COUNT)
    }

    fn own(&self) -> Vec<f32> {
        self.of(self.rank)
    }

    fn all(&self) -> Vec<Vec<f32>> {
        (0..self.size).map(|rank| self.of(rank)).collect()
    }

    fn sum(&self) -> Vec<f32> {
        oracle::sum(&self.all())
    }

    fn sparse(&self) -> Vec<SparseVec> {
        self.all().iter().map(|vector| suite::sparse(vector, K)).collect()
    }

    fn own_sparse(&self) -> SparseVec {
        suite::sparse(&self.own(), K)
    }

    /// A matrix of rank one: a column of this rank times a row that all ranks share.
    fn matrix(&self, rank: u32) -> Vec<f32> {
        let (rows, cols) = SHAPE;
        let (column, row) = (oracle::vector(rank + self.turn, rows), oracle::vector(1000, cols));
        column.iter().flat_map(|x| row.iter().map(move |y| x * y)).collect()
    }

    fn mean_matrix(&self) -> Vec<f32> {
        let sum = oracle::sum(&(0..self.size).map(|rank| self.matrix(rank)).collect::<Vec<_>>());
        sum.iter().map(|sum| sum / self.size as f32).collect()
    }
}

fn of<T: Element>(operation: Operation, count: usize) -> Description {
    Description::new(operation, T::TYPE.number(), count)
}

async fn barrier(group: &Group) -> Result<()> {
    let call = group.start(of::<u8>(Operation::BARRIER, 0), (), |call, ()| Box::pin(dense::barrier(call)));
    call.await.1
}

async fn broadcast(group: &Group, inputs: &Inputs) -> Result<()> {
    let root = inputs.turn % inputs.size;
    let data = if inputs.rank == root { inputs.own() } else { vec![0.0; COUNT] };
    let call = group.start(of::<f32>(Operation::BROADCAST, COUNT), data, move |call, data| {
        Box::pin(async move {
            call.run_in_place(&Broadcast::new::<f32>(root), Chunk::from(&mut data[..])).await.map(drop)
        })
    });
    let (data, result) = call.await;
    result.map(|()| assert_eq!(data, inputs.of(root)))
}

async fn dense_sum(group: &Group, inputs: &Inputs, algorithm: Algorithm) -> Result<()> {
    let group = group.with_algorithm(Some(algorithm).filter(|_| group.world_size() > 1));
    let (data, result) = group.start_all_reduce(inputs.own(), ReduceOp::Sum).await;
    result.map(|()| assert_eq!(data, inputs.sum()))
}

async fn all_gather(group: &Group, inputs: &Inputs) -> Result<()> {
    let mut all = vec![f32::NAN; COUNT * inputs.size as usize];
    all[COUNT * inputs.rank as usize..][..COUNT].copy_from_slice(&inputs.own());
    let call = group.start(of::<f32>(Operation::ALL_GATHER, COUNT), all, |call, all| {
        Box::pin(async move {
            let all = Chunk::from(&mut all[..]);
            call.run_in_place(&AllGather::new::<f32>(Lengths::Equal), all).await.map(drop)
        })
    });
    let (all, result) = call.await;
    result.map(|()| assert_eq!(all, inputs.all().concat()))
}

async fn all_gather_varying(group: &Group, inputs: &Inputs) -> Result<()> {
    let part = |rank: u32| inputs.of(rank)[..COUNT * (rank as usize % 3) / 2].to_vec();
    let call = group.start(of::<f32>(Operation::ALL_GATHER, 0), part(inputs.rank), |call, own| {
        Box::pin(async move { dense::all_gather_varying(call, std::mem::take(own)).await })
    });
    let gathered = call.await.1?;
    assert!((0..inputs.size).map(part).eq(gathered));
    Ok(())
}

async fn gather_sparse(group: &Group, inputs: &Inputs) -> Result<()> {
    let (given, gathered) = group.start_sparse_all_gather(inputs.own_sparse(), K, Coder::pairs()).await;
    assert_eq!((given.local, gathered?), (inputs.own_sparse(), inputs.sparse()));
    Ok(())
}

async fn low_rank(group: &Group, inputs: &Inputs) -> Result<()> {
    let (rows, cols) = SHAPE;
    let state = LowRank::new(rows, cols, 1, 7).unwrap_or_else(|error| panic!("{error}"));
    let batch = Batch::new(vec![state]);
    let (given, factors) = group.start_low_rank_all_reduce(batch, vec![inputs.matrix(inputs.rank)]).await;
    let mut batch = given.batch;
    let mut found = vec![0.0; rows * cols];
    let outcome = batch.reconstruct(0, &factors?, &mut found);
    assert!(outcome.is_ok(), "{outcome:?}");
    assert_near(&found, &inputs.mean_matrix());
    Ok(())
}

/// Sparse gradients have the same few entries on all ranks, so nothing stays behind.
async fn exchange(group: &Group, inputs: &Inputs) -> Result<()> {
    let few = |rank: u32| {
        let mut vector = inputs.of(rank);
        vector.iter_mut().enumerate().filter(|(index, _)| index % 8 != 3).for_each(|(_, value)| *value = 0.0);
        vector
    };
    let built = GradientExchange::builder(group)
        .tensor("dense", [COUNT], Policy::dense())
        .tensor("top-k", [COUNT], Policy::topk(0.25))
        .tensor("gtop-k", [COUNT], Policy::gtopk(0.25))
        .tensor("low-rank", [SHAPE.0, SHAPE.1], Policy::low_rank(1).min_compression(0.0))
        .build();
    let exchange = built.unwrap_or_else(|error| panic!("{error}"));
    let of_rank = |rank| vec![inputs.of(rank), few(rank), few(rank), inputs.matrix(rank)];
    let ((_, found), result) = exchange.start(of_rank(inputs.rank)).await;
    match result {
        Err(brevity::Error::Collective(error)) => return Err(error),
        other => other.unwrap_or_else(|error| panic!("{error}")),
    }
    for (tensor, found) in found.iter().enumerate() {
        let all: Vec<_> = (0..inputs.size).map(|rank| of_rank(rank).swap_remove(tensor)).collect();
        let mean: Vec<_> = oracle::sum(&all).iter().map(|sum| sum / inputs.size as f32).collect();
        assert_near(found, &mean);
    }
    Ok(())
}

/// Splits the group in so many parts, and makes a call on the own one.
async fn divide(group: &Group, inputs: &Inputs, parts: u32) -> Result<()> {
    let part = group.start_split(Some(inputs.rank % parts), inputs.rank).await?;
    let part = part.unwrap_or_else(|| panic!("this rank has a colour"));
    let (sum, result) = part.start_all_reduce(vec![inputs.rank + 1], ReduceOp::Sum).await;
    let expected = (0..inputs.size).filter(|rank| rank % parts == inputs.rank % parts).map(|rank| rank + 1);
    result.map(|()| assert_eq!(sum, [expected.sum::<u32>()]))
}

fn assert_near(found: &[f32], expected: &[f32]) {
    let scale = expected.iter().fold(1.0f32, |most, value| most.max(value.abs()));
    let is_near = |(found, expected): (&f32, &f32)| (found - expected).abs() < 1e-3 * scale;
    assert!(found.iter().zip(expected).all(is_near), "{found:?}, expected {expected:?}");
}
