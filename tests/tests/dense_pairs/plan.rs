//! A call: what it does, and what it has to do.

use std::ops::Range;

use brevity::ReduceOp;
use brevity::collectives::dense::{
    AllGather, AllReduce, AllToAll, Barrier, Broadcast, Collective, Gather, Lengths, Place, Reduce,
    ReduceScatter, Scatter,
};
use brevity::collectives::{Algorithm, DataType, Ground, Machine, Reducer, Sizes, Topology};
use half::{bf16, f16};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Barrier,
    Broadcast,
    Reduce,
    AllReduce,
    ReduceScatter,
    AllGather,
    Gather,
    Scatter,
    AllToAll,
}

pub(super) const KINDS: [Kind; 9] = [
    Kind::Barrier,
    Kind::Broadcast,
    Kind::Reduce,
    Kind::AllReduce,
    Kind::ReduceScatter,
    Kind::AllGather,
    Kind::Gather,
    Kind::Scatter,
    Kind::AllToAll,
];

/// How ranks run, and how they call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Form {
    /// On the simulated network, by a handle.
    Started,
    /// As threads that share no memory, blocking.
    Blocking,
    /// As threads that share the memory of their hosts, blocking.
    Sharing,
}

pub(super) const FORMS: [Form; 3] = [Form::Started, Form::Blocking, Form::Sharing];
pub(super) const COUNTS: [usize; 5] = [0, 1, 7, 65, 300];

/// What calls vary in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Factor {
    Collective,
    /// The library's choice, or one of all.
    Algorithm,
    Type,
    Operation,
    Ranks,
    Count,
    InPlace,
    Form,
    Root,
    AnyOrder,
    /// Whether blocks have lengths of their own.
    Uneven,
    /// Whether there are two hosts.
    Hosts,
}

/// All factors, and how many values they have.
pub(super) const FACTORS: [(Factor, usize); 12] = [
    (Factor::Collective, KINDS.len()),
    (Factor::Algorithm, Algorithm::ALL.len() + 1),
    (Factor::Type, DataType::ALL.len()),
    (Factor::Operation, ReduceOp::ALL.len()),
    (Factor::Ranks, 9),
    (Factor::Count, COUNTS.len()),
    (Factor::InPlace, 2),
    (Factor::Form, FORMS.len()),
    (Factor::Root, 3),
    (Factor::AnyOrder, 2),
    (Factor::Uneven, 2),
    (Factor::Hosts, 2),
];

pub(super) type Values = [usize; FACTORS.len()];

/// A call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    pub(super) algorithm: Option<Algorithm>,
    pub(super) data: DataType,
    pub(super) op: ReduceOp,
    pub(super) ranks: u32,
    count: usize,
    is_in_place: bool,
    pub(super) form: Form,
    pub(super) root: u32,
    pub(super) any_order: bool,
    pub(super) is_uneven: bool,
    has_hosts: bool,
}

impl Kind {
    pub(super) fn reduces(self) -> bool {
        matches!(self, Self::Reduce | Self::AllReduce | Self::ReduceScatter)
    }

    /// Whether calls of it differ in a factor.
    pub(super) fn has(self, factor: Factor) -> bool {
        match factor {
            Factor::Operation | Factor::AnyOrder => self.reduces(),
            Factor::Root => matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter),
            Factor::Uneven => {
                !matches!(self, Self::Barrier | Self::Broadcast | Self::Reduce | Self::AllReduce)
            }
            Factor::InPlace => !matches!(self, Self::Barrier | Self::Broadcast),
            Factor::Type | Factor::Count => self != Self::Barrier,
            _ => true,
        }
    }
}

/// The collective of a plan, as a rank calls it.
macro_rules! with_collective {
    ($plan:expr, $rank:expr, |$collective:ident| $body:expr) => {{
        let plan: &Plan = $plan;
        let (data, root) = (plan.data, plan.root);
        let lengths = || if plan.is_uneven { Lengths::each(&plan.lengths($rank)) } else { Lengths::Equal };
        let reducer = || Reducer::of(data, plan.op).unwrap();
        match plan.kind {
            Kind::Barrier => {
                let $collective = Barrier;
                $body
            }
            Kind::Broadcast => {
                let $collective = Broadcast::of(data, root);
                $body
            }
            Kind::Reduce => {
                let $collective = Reduce::of(reducer(), root);
                $body
            }
            Kind::AllReduce => {
                let $collective = AllReduce::of(reducer());
                $body
            }
            Kind::ReduceScatter => {
                let $collective = ReduceScatter::of(reducer(), lengths());
                $body
            }
            Kind::AllGather => {
                let $collective = AllGather::of(data, lengths());
                $body
            }
            Kind::Gather => {
                let $collective = Gather::of(data, root, lengths());
                $body
            }
            Kind::Scatter => {
                let $collective = Scatter::of(data, root, lengths());
                $body
            }
            Kind::AllToAll => {
                let $collective = AllToAll::of(data, lengths(), lengths());
                $body
            }
        }
    }};
}

pub(super) use with_collective;

impl Plan {
    pub(super) fn new(values: &Values) -> Self {
        let [kind, algorithm, data, op, ranks, count, in_place, form, root, any_order, uneven, hosts] =
            *values;
        let (kind, ranks) = (KINDS[kind], ranks as u32 + 1);
        Self {
            kind,
            algorithm: algorithm.checked_sub(1).map(|index| Algorithm::ALL[index]),
            data: DataType::ALL[data],
            op: ReduceOp::ALL[op],
            ranks,
            count: COUNTS[count],
            is_in_place: in_place == 1 || !kind.has(Factor::InPlace),
            form: FORMS[form],
            root: [0, ranks / 2, ranks - 1][root],
            any_order: any_order == 1,
            is_uneven: uneven == 1,
            has_hosts: hosts == 1,
        }
    }

    /// Whether there is such a call. Factors that its collective does not have may have any value.
    pub(super) fn is_valid(&self) -> bool {
        if self.kind.reduces() && !self.op.is_defined_for(self.data)
            || self.is_uneven && !self.kind.has(Factor::Uneven)
            || self.has_hosts && self.ranks == 1
        {
            return false;
        }
        let Some(algorithm) = self.algorithm else { return true };
        let topology = Topology::of(&self.hosts());
        let has_slots = self.form == Form::Sharing && topology.hosts == 1;
        let ground = Ground {
            topology,
            has_slots,
            any_order: self.any_order,
            ..Ground::new(Machine::default(), self.ranks)
        };
        with_collective!(self, 0, |collective| self.fits(&collective, algorithm, &ground))
    }

    fn fits<C: Collective>(&self, collective: &C, algorithm: Algorithm, ground: &Ground) -> bool {
        let (input, output) = self.counts(0);
        let bytes = |count: usize| count * self.data.bytes();
        let sizes = Sizes { input: input.map(bytes), output: bytes(output) };
        let work = collective.work(sizes, Place { rank: 0, world_size: self.ranks });
        let mut rows = C::ROWS.iter().filter(|row| row.algorithm == algorithm);
        self.ranks > 1 && rows.any(|row| (row.fits)(&work, ground))
    }

    /// The host of each rank: two hosts in turn, or one for all that share memory, or one for each.
    pub(super) fn hosts(&self) -> Vec<u32> {
        (0..self.ranks)
            .map(|rank| match (self.has_hosts, self.form) {
                // Ranks 0 and 1, 4 and 5, 8.
                (true, _) => rank / 2 % 2,
                (false, Form::Sharing) => 0,
                (false, _) => rank,
            })
            .collect()
    }

    /// The elements of each block that `rank` sends, receives or knows of.
    pub(super) fn lengths(&self, rank: u32) -> Vec<usize> {
        let length = |place: u32| match self.is_uneven {
            true => self.count * ((place as usize + 2) % 3) / 2,
            false => self.count,
        };
        let shift = if self.kind == Kind::AllToAll { rank } else { 0 };
        (0..self.ranks).map(|place| length(place + shift)).collect()
    }

    /// The place of the block of `rank` in all.
    fn block(&self, rank: u32) -> Range<usize> {
        let lengths = self.lengths(rank);
        let start = lengths[..rank as usize].iter().sum();
        start..start + lengths[rank as usize]
    }

    /// The elements of a rank's input, if it is apart, and of its output.
    fn counts(&self, rank: u32) -> (Option<usize>, usize) {
        let (total, mine) = (self.lengths(rank).iter().sum(), self.block(rank).len());
        let (is_root, count) = (rank == self.root, self.count);
        let (input, output, in_place) = match self.kind {
            Kind::Barrier => (0, 0, 0),
            Kind::Broadcast | Kind::AllReduce => (count, count, count),
            Kind::Reduce => (count, if is_root { count } else { 0 }, count),
            Kind::ReduceScatter => (total, mine, total),
            Kind::AllGather => (mine, total, total),
            Kind::Gather => (mine, if is_root { total } else { 0 }, if is_root { total } else { mine }),
            Kind::Scatter => (if is_root { total } else { 0 }, mine, if is_root { total } else { mine }),
            Kind::AllToAll => (total, total, total),
        };
        if self.is_in_place { (None, in_place) } else { (Some(input), output) }
    }

    /// What a rank brings: of reductions 1 and 2, whose products all types have; of others more values.
    fn value(&self, rank: u32, index: usize) -> i64 {
        let mixed = (u64::from(rank) * 1009 + index as u64 + 7).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        if self.kind.reduces() { 1 + (mixed % 2) as i64 } else { (mixed % 120) as i64 }
    }

    /// Elements of the plan's type.
    fn encode(&self, values: impl Iterator<Item = i64>) -> Vec<u8> {
        values.flat_map(|value| element(self.data, value)).collect()
    }

    fn given(&self, rank: u32, range: Range<usize>) -> Vec<u8> {
        self.encode(range.map(|index| self.value(rank, index)))
    }

    /// The elements of a range, of all ranks' vectors together.
    fn reduced(&self, range: Range<usize>) -> Vec<u8> {
        let of = |index: usize| (0..self.ranks).map(move |rank| self.value(rank, index));
        let truth = |value: i64| if self.data == DataType::Bool { value & 1 } else { value };
        if self.op == ReduceOp::Average {
            return range.flat_map(|index| quotient(self.data, of(index).sum(), self.ranks)).collect();
        }
        let op = |a: i64, b: i64| match self.op {
            ReduceOp::Max => a.max(b),
            ReduceOp::Min => a.min(b),
            ReduceOp::Product => a * b,
            ReduceOp::And => a & b,
            ReduceOp::Or => a | b,
            ReduceOp::Xor => a ^ b,
            _ => a + b,
        };
        self.encode(range.map(|index| of(index).map(truth).reduce(op).unwrap_or(0)))
    }

    /// What a rank has before the call, and has to have after it in a range of its output, in bytes.
    pub(super) fn case(&self, rank: u32) -> Case {
        let (block, is_root) = (self.block(rank), rank == self.root);
        let (input, output) = self.counts(rank);
        // Of what is given, and of the output.
        let (place, expected) = match self.kind {
            Kind::Barrier => (0..0, Vec::new()),
            Kind::Broadcast => (0..self.count, self.given(self.root, 0..self.count)),
            Kind::AllReduce => (0..output, self.reduced(0..self.count)),
            Kind::Reduce if is_root => (0..output, self.reduced(0..self.count)),
            Kind::Gather if !is_root => (0..output, Vec::new()),
            Kind::Reduce => (0..output, Vec::new()),
            Kind::ReduceScatter => (0..output, self.reduced(block.clone())),
            Kind::AllGather | Kind::Gather => {
                let of = |from: u32| self.given(from, 0..self.lengths(from)[from as usize]);
                (block.clone(), (0..self.ranks).flat_map(of).collect())
            }
            Kind::Scatter => (0..output, self.given(self.root, block.clone())),
            Kind::AllToAll => {
                let lengths = self.lengths(rank);
                let of = |from: u32| {
                    let start = self.lengths(from)[..rank as usize].iter().sum::<usize>();
                    self.given(from, start..start + lengths[from as usize])
                };
                (0..output, (0..self.ranks).flat_map(of).collect())
            }
        };
        let size = self.data.bytes();
        let mut before = Vector::new(&vec![0xa5; output * size]);
        if self.is_in_place {
            before.bytes_mut()[place.start * size..place.end * size]
                .copy_from_slice(&self.given(rank, 0..place.len()));
        }
        let is_whole = !self.is_in_place || expected.len() == output * size;
        let range = match is_whole {
            _ if expected.is_empty() => 0..0,
            true => 0..output,
            false => block,
        };
        let input = input.map(|count| Vector::new(&self.given(rank, 0..count)));
        Case { input, output: before, expected, range: range.start * size..range.end * size }
    }
}

/// Bytes that are aligned for elements of any type.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Vector {
    words: Vec<u64>,
    length: usize,
}

impl Vector {
    pub(super) fn new(bytes: &[u8]) -> Self {
        let mut vector = Self { words: vec![0; bytes.len().div_ceil(8)], length: bytes.len() };
        vector.bytes_mut().copy_from_slice(bytes);
        vector
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.length]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.length]
    }
}

#[derive(Debug)]
pub(super) struct Case {
    pub(super) input: Option<Vector>,
    pub(super) output: Vector,
    pub(super) expected: Vec<u8>,
    /// Where it is in the output.
    pub(super) range: Range<usize>,
}

/// The bytes of a whole number; integers wrap around.
fn element(data: DataType, value: i64) -> Vec<u8> {
    match data {
        DataType::F32 => (value as f32).to_le_bytes().to_vec(),
        DataType::F64 => (value as f64).to_le_bytes().to_vec(),
        DataType::F16 => f16::from_f32(value as f32).to_le_bytes().to_vec(),
        DataType::Bf16 => bf16::from_f32(value as f32).to_le_bytes().to_vec(),
        DataType::Bool => vec![(value & 1) as u8],
        integer => value.to_le_bytes()[..integer.bytes()].to_vec(),
    }
}

fn quotient(data: DataType, sum: i64, ranks: u32) -> Vec<u8> {
    let narrow = sum as f32 / ranks as f32;
    match data {
        DataType::F64 => (sum as f64 / f64::from(ranks)).to_le_bytes().to_vec(),
        DataType::F16 => f16::from_f32(narrow).to_le_bytes().to_vec(),
        DataType::Bf16 => bf16::from_f32(narrow).to_le_bytes().to_vec(),
        _ => narrow.to_le_bytes().to_vec(),
    }
}
