//! One rank flushes subnormal numbers or rounds in another direction: all ranks get the same bits as without
//! it, and the rank keeps its mode. Ranks are threads.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use brevity::collectives::sparse::{Coder, Draw, LeaderSum, OkTopk, RandomPlaces, Wire};
use brevity::collectives::{Algorithm, Chunk, Description, Operation, dense};
use brevity::compress::SparseVec;
use brevity::compress::low_rank::{Batch, LowRank};
use brevity::compress::quantise::Values;
use brevity::transport::bootstrap::Opened;
use brevity::transport::local;
use brevity::transport::shm::LocalGroup;
use brevity::{Element, GradientExchange, Group, Handle, Policy, PutBack, ReduceOp, Settings};
use brevity_compress::float_modes::{FLUSHING, STANDARD, TOWARDS_ZERO, float_mode, set_float_mode};
use brevity_testing::worlds::boxed;
use brevity_tests::dense::all_reduce_by;
use brevity_tests::on_groups;

const WORLD_SIZE: u32 = 3;

/// Elements of the tensors of an exchange.
const ELEMENTS: usize = 600;

/// Less than a line of shared memory, one slot, several chunks; recursive doubling and the ring.
const COUNTS: [usize; 5] = [1, 4, 100, 2000, 20_001];

/// The connection between ranks, and what polls their calls.
#[derive(Clone, Copy, Debug)]
struct World {
    shares_memory: bool,
    progress_thread: bool,
}

impl World {
    fn all() -> impl Iterator<Item = Self> {
        [false, true].into_iter().flat_map(|shares_memory| {
            [false, true].map(|progress_thread| Self { shares_memory, progress_thread })
        })
    }

    fn groups(self) -> Vec<Group> {
        let settings = Settings { progress_thread: self.progress_thread, ..Settings::default() };
        let mut local_groups = Vec::new();
        if self.shares_memory {
            local_groups = LocalGroup::in_process(WORLD_SIZE).unwrap();
        }
        let mut local_groups = local_groups.into_iter();
        let ranks = boxed(local::world(WORLD_SIZE)).into_iter();
        let opened = ranks.map(|rank| Opened::in_process(rank, local_groups.next()));
        opened.map(|opened| Group::opened(opened, settings)).collect()
    }

    /// The results of all ranks of `program`, which rank `odd` runs in `mode`.
    fn run(self, odd: u32, mode: u64, program: fn(&mut Ledger)) -> Vec<Vec<u64>> {
        on_groups(self.groups(), move |group| {
            let mode = if group.rank() == odd { mode } else { STANDARD };
            set_float_mode(mode);
            let mut ledger = Ledger { group: group.clone(), mode, bits: Vec::new() };
            program(&mut ledger);
            set_float_mode(STANDARD);
            ledger.bits
        })
    }
}

/// One rank, and the bits of its results.
struct Ledger {
    group: Group,
    mode: u64,
    bits: Vec<u64>,
}

/// A number that is not computed in floating point: subnormal, nearly so, or around one, by its index.
trait Given: Element {
    fn given(rank: u32, index: usize, step: usize) -> Self;
    fn bits(self) -> u64;
}

fn hash(rank: u32, index: usize, step: usize) -> u64 {
    let mixed = (u64::from(rank) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (index as u64 + 1).wrapping_mul(0xd1b5_4a32_d192_ed03)
        ^ (step as u64 + 1).wrapping_mul(0x2545_f491_4f6c_dd1d);
    mixed.wrapping_mul(0xff51_afd7_ed55_8ccd) ^ mixed >> 31
}

impl Given for f32 {
    fn given(rank: u32, index: usize, step: usize) -> Self {
        let (mixed, exponents) = (hash(rank, index, step) as u32, [0, 1 << 23, 127 << 23]);
        f32::from_bits(mixed & 0x807f_ffff | exponents[index % 3])
    }

    fn bits(self) -> u64 {
        self.to_bits().into()
    }
}

impl Given for f64 {
    fn given(rank: u32, index: usize, step: usize) -> Self {
        let (mixed, exponents) = (hash(rank, index, step), [0, 1 << 52, 1023 << 52]);
        f64::from_bits(mixed & 0x800f_ffff_ffff_ffff | exponents[index % 3])
    }

    fn bits(self) -> u64 {
        self.to_bits()
    }
}

impl Ledger {
    fn vector<T: Given>(&self, count: usize, step: usize) -> Vec<T> {
        (0..count).map(|index| T::given(self.group.rank(), index, step)).collect()
    }

    /// Records the results of a call, after which the mode must be unchanged.
    fn note<T: Given>(&mut self, what: &str, results: &[T]) {
        assert_eq!(float_mode(), self.mode, "after {what}");
        self.bits.extend(results.iter().map(|value| value.bits()));
    }

    fn note_sparse(&mut self, what: &str, result: &SparseVec) {
        self.bits.extend(result.indices().iter().map(|&index| u64::from(index)));
        self.note(what, result.values());
    }
}

/// Drives a future to its end like a runtime without other work.
fn block_on<R>(future: impl Future<Output = R>) -> R {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return result;
        }
        thread::yield_now();
    }
}

/// Waits for a handle in one of the possible ways.
fn end<T>(handle: Handle<T>, way: usize) -> T {
    match way % 3 {
        0 => handle.wait(),
        1 => block_on(handle),
        _ => {
            while !handle.test() {
                thread::yield_now();
            }
            handle.wait()
        }
    }
}

/// Checks that every rank's bits are those of a run in which all ranks have the standard mode.
fn check(program: fn(&mut Ledger)) {
    for world in World::all() {
        let expected = world.run(0, STANDARD, program);
        assert!(!expected[0].is_empty());
        // In the trees of sparse sums, rank 0 merges and rank 1 does not.
        for (odd, mode) in [(0, FLUSHING), (1, FLUSHING), (0, TOWARDS_ZERO), (1, TOWARDS_ZERO)] {
            let found = world.run(odd, mode, program);
            for (rank, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
                assert_eq!(differs, None, "rank {rank} of {world:?}, mode {mode:#x} on rank {odd}");
                assert_eq!(found.len(), expected.len());
            }
        }
    }
}

fn same_on_all_ranks(results: &[Vec<u64>]) -> bool {
    results.iter().all(|result| *result == results[0])
}

/// Sums whose results are known without the library.
#[test]
fn subnormal_numbers_are_added() {
    for world in World::all() {
        for mode in [STANDARD, FLUSHING] {
            let results = world.run(1, mode, |ledger| {
                for count in COUNTS {
                    let mut data = vec![f32::from_bits(71_362); count];
                    ledger.group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                    ledger.note("a sum", &data);
                }
            });
            assert!(results.iter().flatten().all(|&bits| bits == 3 * 71_362), "{world:?} {mode:#x}");
        }
    }
}

fn reduce_dense<T: Given>(ledger: &mut Ledger) {
    let mut way = 0;
    for (step, count) in COUNTS.into_iter().enumerate() {
        for reduction in [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Min, ReduceOp::Max] {
            let mut data = ledger.vector::<T>(count, step);
            ledger.group.all_reduce(&mut data, reduction).unwrap();
            ledger.note("an all-reduce", &data);
            let handle = ledger.group.start_all_reduce(ledger.vector::<T>(count, step), reduction);
            let (data, result) = end(handle, way);
            result.unwrap();
            ledger.note("a started all-reduce", &data);
            way += 1;
        }
    }
}

#[test]
fn dense_vectors_are_reduced_alike() {
    check(|ledger| {
        reduce_dense::<f32>(ledger);
        reduce_dense::<f64>(ledger);
    });
    let results =
        World { shares_memory: false, progress_thread: false }.run(1, FLUSHING, reduce_dense::<f32>);
    assert!(same_on_all_ranks(&results));
}

/// The algorithms directly, inside a body.
#[test]
fn bodies_reduce_alike() {
    check(|ledger| {
        for count in COUNTS {
            let own = || ledger.vector::<f32>(count, 0);
            let description = Description::new(Operation::MESSAGE, 0, 0);
            let (direct, doubled) = ledger.group.run_in_order(description, async |call| {
                let direct = all_reduce_by(call, Algorithm::Direct, own(), ReduceOp::Sum).await.unwrap();
                let doubled = all_reduce_by(call, Algorithm::Doubling, own(), ReduceOp::Average).await;
                (direct, doubled.unwrap())
            });
            ledger.note("direct exchange", &direct);
            ledger.note("recursive doubling", &doubled);
        }
    });
}

/// Sums of entries that cancel to a subnormal number.
fn sparse(ledger: &Ledger, dim: usize, step: usize) -> SparseVec {
    let kept = |index: &u32| !hash(ledger.group.rank(), *index as usize, step).is_multiple_of(4);
    let indices: Vec<u32> = (0..dim as u32).filter(kept).collect();
    let values = indices.iter().map(|&index| f32::given(ledger.group.rank(), index as usize, step)).collect();
    SparseVec::from_parts(dim, indices, values).unwrap()
}

/// Sums that become dense after a round, or are so from the start.
fn sums_by_doubling(ledger: &mut Ledger, local: &SparseVec) {
    for (wire, share) in
        [Wire::Pairs, Wire::Coded(Values::F32)].into_iter().flat_map(|wire| [1, 3].map(|share| (wire, share)))
    {
        let indices: Vec<u32> = local.indices().iter().copied().step_by(share).collect();
        let values = local.values().iter().copied().step_by(share).collect();
        let some = SparseVec::from_parts(local.dim(), indices, values).unwrap();
        let group = ledger.group.with_algorithm(Some(Algorithm::Doubling));
        let top = group.topk_all_reduce_by(some.view(), some.dim(), &mut Coder::new(wire)).unwrap();
        ledger.note_sparse("a top-k all-reduce by doubling", &top.sum);
    }
}

#[test]
fn sparse_vectors_are_summed_alike() {
    check(|ledger| {
        for (step, dim) in [3, 100, 5000].into_iter().enumerate() {
            let local = sparse(ledger, dim, step);
            let sum = ledger.group.topk_all_reduce(local.view(), dim).unwrap();
            ledger.note_sparse("a top-k all-reduce", &sum);
            sums_by_doubling(ledger, &local);
            let mut blocks = local.to_dense();
            ledger.group.block_all_reduce(&mut blocks, 16).unwrap();
            ledger.note("a block-sparse all-reduce", &blocks);
            let places = RandomPlaces { draw: Draw::Scattered, k: dim / 2, seed: 5, step: step as u64 };
            let at_random = ledger.group.random_k_all_reduce(&local.to_dense(), places).unwrap();
            ledger.note_sparse("a random-k all-reduce", &at_random);
            let (mut own, by) = (local.to_dense(), LeaderSum::Gtopk(PutBack::Conserving));
            let pairs = &mut Coder::pairs();
            let largest = ledger.group.hierarchical_all_reduce(&mut own, dim / 2, by, pairs).unwrap();
            ledger.note_sparse("a hierarchical all-reduce", &largest);
            let mut state = OkTopk::new(dim, local.len(), ledger.group.world_size());
            let outcome = ledger.group.ok_topk_all_reduce(local.view(), &mut state).unwrap();
            ledger.note_sparse("an Ok-Topk all-reduce", &outcome.result);
            for values in [Values::Bf16, Values::EightBit] {
                let mut coder = Coder::new(Wire::Coded(values));
                for algorithm in [Algorithm::Bruck, Algorithm::Direct] {
                    let group = ledger.group.with_algorithm(Some(algorithm));
                    let top = group.topk_all_reduce_by(local.view(), dim, &mut coder).unwrap();
                    ledger.note_sparse("a coded top-k all-reduce", &top.sum);
                }
                let mut vector = local.to_dense();
                ledger.group.quantised_all_reduce(&mut vector, values).unwrap();
                ledger.note("a quantised all-reduce", &vector);
            }
            let mut signs = local.to_dense();
            ledger.group.vote_all_reduce(&mut signs).unwrap();
            ledger.note("a vote", &signs);
            for rule in [PutBack::Conserving, PutBack::Published, PutBack::MergerKeeps] {
                let outcome = ledger.group.gtopk_all_reduce(local.view(), local.len(), rule).unwrap();
                ledger.note_sparse("a gTop-k all-reduce", &outcome.result);
                ledger.note_sparse("a gTop-k all-reduce", &outcome.put_back);
            }
        }
    });
}

#[test]
fn low_rank_factors_are_alike() {
    check(|ledger| {
        let states = [(20, 30), (1, 7)].map(|(rows, cols)| LowRank::new(rows, cols, 2, 7).unwrap());
        let mut batch = Batch::new(states.to_vec());
        for state in batch.states() {
            ledger.note("a state", state.q());
        }
        let matrices = [ledger.vector::<f32>(600, 0), ledger.vector(7, 1)];
        let slices: Vec<&[f32]> = matrices.iter().map(Vec::as_slice).collect();
        let factors = ledger.group.low_rank_all_reduce(&mut batch, &slices).unwrap();
        ledger.note("a low-rank all-reduce", &factors.p);
        ledger.note("a low-rank all-reduce", &factors.q);
    });
}

/// Those of sparse tensors are all subnormal, so that some are selected.
fn given_gradients(ledger: &Ledger, tensors: usize, step: usize) -> Vec<Vec<f32>> {
    let stride = |tensor: usize| if matches!(tensor, 0 | 2) { 1 } else { 3 };
    let of = |tensor: usize, index: usize| {
        f32::given(ledger.group.rank(), stride(tensor) * index, tensor + 10 * step)
    };
    (0..tensors).map(|tensor| (0..ELEMENTS).map(|index| of(tensor, index)).collect()).collect()
}

fn average_all(ledger: &mut Ledger) {
    let count = ELEMENTS;
    let mut builder = GradientExchange::builder(&ledger.group)
        .tensor("dense", [count], Policy::dense())
        .tensor("top-k", [count], Policy::topk(0.3))
        .tensor("low rank", [20, 30], Policy::low_rank(2));
    for rule in [PutBack::Conserving, PutBack::Published, PutBack::MergerKeeps] {
        builder = builder.tensor(format!("{rule:?}"), [count], Policy::gtopk(0.3).put_back(rule));
    }
    let mut exchange = builder.build().unwrap();
    let names: Vec<String> = exchange.tensors().map(|(name, _)| name.to_owned()).collect();
    for step in 0..4 {
        let mut gradients = given_gradients(ledger, names.len(), step);
        match step {
            0 => exchange.average(&mut gradients).unwrap(),
            step => {
                let averaging = exchange.start(gradients);
                let ended = match step {
                    1 => averaging.wait(),
                    2 => block_on(averaging),
                    _ => {
                        while !averaging.test() {
                            thread::yield_now();
                        }
                        averaging.wait()
                    }
                };
                ended.1.unwrap();
                (exchange, gradients) = ended.0;
            }
        }
        for (name, gradient) in names.iter().zip(&gradients) {
            ledger.note(name, gradient);
            ledger.note(name, &exchange.residual(name).unwrap());
        }
        // A step that is left out.
        let mut bad = given_gradients(ledger, names.len(), 0);
        bad[0][0] = if ledger.group.rank() < 2 { f32::NAN } else { 0.0 };
        exchange.average(&mut bad).unwrap_err();
        names.iter().for_each(|name| ledger.note(name, &exchange.residual(name).unwrap()));
        let mut saved = Vec::new();
        exchange.save(&mut saved).unwrap();
        ledger.bits.extend(saved.into_iter().map(u64::from));
        exchange.set_density("top-k", [0.1, 0.2, 0.7, 0.3][step]).unwrap();
    }
}

#[test]
fn exchanges_average_alike() {
    check(average_all);
}

/// What users compute themselves is computed in their mode: around a collective in a body, and in a body that
/// another call polls.
#[test]
fn bodies_keep_the_mode_of_their_thread() {
    fn program(ledger: &mut Ledger) {
        let mode = ledger.mode;
        let sum = async |call: &brevity::collectives::Call<'_, '_>| {
            let data = Chunk::from(vec![f32::MIN_POSITIVE; 100]);
            assert_eq!(float_mode(), mode);
            dense::all_reduce(call, data, ReduceOp::Average).await.unwrap();
            assert_eq!(float_mode(), mode);
        };
        ledger.group.run_in_order(Description::new(Operation::MESSAGE, 0, 0), sum);
        let handle = ledger.group.start(Description::new(Operation::MESSAGE, 0, 1), (), move |call, ()| {
            Box::pin(async move {
                for _ in 0..20 {
                    let data = Chunk::from(vec![f32::MIN_POSITIVE; 100]);
                    dense::all_reduce(call, data, ReduceOp::Average).await.unwrap();
                    assert_eq!(float_mode(), mode);
                }
            })
        });
        for step in 0..20 {
            let mut data = ledger.vector::<f32>(2000, step);
            ledger.group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            ledger.note("a sum", &data);
        }
        handle.wait();
    }
    for shares_memory in [false, true] {
        let world = World { shares_memory, progress_thread: false };
        assert!(same_on_all_ranks(&world.run(1, FLUSHING, program)));
    }
}

/// Independently of the mode of the thread that started it.
#[test]
fn the_progress_thread_has_the_standard_mode() {
    let seen = thread::spawn(|| {
        set_float_mode(FLUSHING);
        let settings = Settings { progress_thread: true, ..Settings::default() };
        let alone = boxed(local::world(1)).remove(0);
        let group = Group::opened(Opened::in_process(alone, None), settings);
        let (sender, receiver) = channel();
        let body = Description::new(Operation::MESSAGE, 0, 0);
        let handle = group.start(body, sender, |_, sender| {
            Box::pin(poll_fn(move |_| {
                if thread::current().name() != Some("brv-progress") {
                    return Poll::Pending;
                }
                sender.send(float_mode()).unwrap();
                Poll::Ready(())
            }))
        });
        let seen = receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        handle.wait();
        assert_eq!(float_mode(), FLUSHING);
        set_float_mode(STANDARD);
        seen
    });
    assert_eq!(seen.join().unwrap(), STANDARD);
}
