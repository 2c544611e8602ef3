//! Sums of sparse vectors, compared with a plain implementation: two pointers, a branch on each comparison,
//! and a selection by the standard library.

use std::hint::black_box;

use brevity::compress::merge::{MergeScratch, OrderedScratch, add, sum_in_order, top_k_sum};
use brevity::compress::{SparseVec, SparseView};

use super::entries::disjoint;
use super::gradient_drop::{SHARES, entries};
use super::{Bar, Done, Extent, Group, Row, Subject, check, measure as measure_row, refused};
use crate::Result;

/// Vectors that are summed together.
const MANY: usize = 16;

/// Bytes of an entry.
const ENTRY: usize = 8;

/// Sparse vectors with equal numbers of entries, and the work space of their sums.
struct Sums {
    n: usize,
    vectors: Vec<SparseVec>,
    plain: Plain,
    out: SparseVec,
    dropped: SparseVec,
    scratch: MergeScratch,
    ordered: OrderedScratch,
    dense: Vec<f32>,
    /// As many bytes as the entries that are added to a dense vector.
    bytes: Vec<u8>,
}

/// Measures all rows.
pub(super) fn measure(extent: Extent, told: &mut impl FnMut(Row)) -> Result<()> {
    let n = extent.elements;
    let [_, share] = SHARES;
    let mut sums = Sums {
        n,
        vectors: disjoint(n, MANY.min(n), entries(share, n))?,
        plain: Plain::default(),
        out: SparseVec::new(n),
        dropped: SparseVec::new(n),
        scratch: MergeScratch::new(),
        ordered: OrderedScratch::new(),
        dense: vec![0.0; n],
        bytes: vec![0; ENTRY * entries(share, n)],
    };
    sums.verify()?;
    let turns = extent.of_short();
    let subject = sums.subject("sum of 2, top k of it", 2, "plain way");
    let bars = vec![Bar::Times(0.5), Bar::Nanoseconds(3.0)];
    let subject = Subject { bars, ..subject };
    told(measure_row(subject, turns, &mut sums, |_| (), Sums::plain_top_k_sum, Sums::top_k_sum)?);
    let subject = sums.subject("sum of 2", 2, "plain way");
    told(measure_row(subject, turns, &mut sums, |_| (), Sums::plain_add, Sums::add)?);
    let subject = sums.subject("sum of 16", MANY, "plain, by 2");
    told(measure_row(subject, extent.iterations, &mut sums, |_| (), Sums::plain_add_all, Sums::add_all)?);
    let subject = sums.subject("sum into a dense vector", 1, "copy of it");
    told(measure_row(subject, turns, &mut sums, |_| (), Sums::copy, Sums::scatter)?);
    Ok(())
}

impl Sums {
    /// A kernel on the first `count` vectors.
    fn subject(&self, kernel: &str, count: usize, floor: &'static str) -> Subject {
        let entries: usize = self.vectors.iter().take(count).map(SparseVec::len).sum();
        let density = Some(self.vectors[0].len() as f64 / self.n as f64);
        let subject = Subject::new(Group::Sparse, kernel, self.n, 0, floor);
        // Read and written.
        Subject { density, entries: Some(entries), bytes: 2 * ENTRY * entries, ..subject }
    }

    /// Two of the vectors; the same one twice if there are no two.
    fn two(vectors: &[SparseVec]) -> (SparseView<'_>, SparseView<'_>) {
        (vectors[0].view(), vectors[vectors.len().min(2) - 1].view())
    }

    fn top_k_sum(&mut self) -> Done {
        let (a, b) = Self::two(&self.vectors);
        top_k_sum(black_box(a), b, a.len(), &mut self.out, &mut self.dropped, &mut self.scratch)
    }

    fn plain_top_k_sum(&mut self) {
        let (a, b) = Self::two(&self.vectors);
        self.plain.top_k_sum(black_box(a), b, a.len(), &mut self.out, &mut self.dropped);
    }

    fn add(&mut self) -> Done {
        let (a, b) = Self::two(&self.vectors);
        add(black_box(a), b, &mut self.out)
    }

    fn plain_add(&mut self) {
        let (a, b) = Self::two(&self.vectors);
        plain_add(black_box(a), b, &mut self.out);
    }

    fn add_all(&mut self) -> Done {
        let views: Vec<_> = self.vectors.iter().map(SparseVec::view).collect();
        sum_in_order(black_box(&views), &mut self.out, &mut self.ordered)
    }

    /// Adds neighbours until one is left. No index is in two of the vectors, so any order has the same bits.
    fn plain_add_all(&mut self) {
        let Self { vectors, plain, out, .. } = self;
        let mut left = vectors.len().div_ceil(2);
        plain.parts.resize_with(left, SparseVec::default);
        for (pair, part) in vectors.chunks(2).zip(&mut plain.parts) {
            match pair {
                [a, b] => plain_add(a.view(), b.view(), part),
                _ => part.copy_from(pair[0].view()),
            }
        }
        while left > 1 {
            for place in 0..left / 2 {
                plain_add(plain.parts[2 * place].view(), plain.parts[2 * place + 1].view(), &mut plain.sums);
                std::mem::swap(&mut plain.parts[place], &mut plain.sums);
            }
            if left % 2 == 1 {
                plain.parts.swap(left / 2, left - 1);
            }
            left = left.div_ceil(2);
        }
        std::mem::swap(out, &mut plain.parts[0]);
    }

    fn scatter(&mut self) {
        black_box(&self.vectors[0]).add_to(&mut self.dense);
    }

    /// Copies the entries alone, without the dense vector.
    fn copy(&mut self) {
        let (indices, values) = self.bytes.split_at_mut(ENTRY / 2 * self.vectors[0].len());
        let own = self.vectors[0].indices().iter().zip(self.vectors[0].values());
        let places = indices.as_chunks_mut().0.iter_mut().zip(values.as_chunks_mut().0);
        for ((index, value), (i, v)) in own.zip(places) {
            (*i, *v) = (index.to_ne_bytes(), value.to_ne_bytes());
        }
        black_box(&mut self.bytes);
    }

    /// Checks that both ways give the same.
    fn verify(&mut self) -> Result<()> {
        self.plain_top_k_sum();
        let expected = (self.out.clone(), self.dropped.clone());
        self.top_k_sum().map_err(refused("top_k_sum"))?;
        let is_right = (&self.out, &self.dropped) == (&expected.0, &expected.1);
        check(is_right, "top_k_sum", "the plain way selects others")?;
        self.plain_add();
        let expected = self.out.clone();
        self.add().map_err(refused("add"))?;
        check(self.out == expected, "add", "the plain way has another sum")?;
        self.plain_add_all();
        let expected = self.out.clone();
        self.add_all().map_err(refused("sum_in_order"))?;
        check(self.out == expected, "sum_in_order", "the plain way has another sum")?;
        self.scatter();
        let mut entries = self.vectors[0].iter().peekable();
        let is_right = (0..).zip(&self.dense).all(|(index, value)| {
            let entry = entries.next_if(|&(place, _)| place == index);
            *value == entry.map_or(0.0, |(_, value)| value)
        });
        check(is_right, "sum into a dense vector", "a place has not the value of its entry")
    }
}

/// The work space of the plain implementation.
#[derive(Default)]
struct Plain {
    keys: Vec<u64>,
    sorted: Vec<u64>,
    sums: SparseVec,
    parts: Vec<SparseVec>,
}

impl Plain {
    fn top_k_sum(
        &mut self,
        a: SparseView<'_>,
        b: SparseView<'_>,
        k: usize,
        kept: &mut SparseVec,
        dropped: &mut SparseVec,
    ) {
        plain_add(a, b, &mut self.sums);
        let key = |index: u32, value: f32| u64::from(value.to_bits() & 0x7fff_ffff) << 32 | u64::from(!index);
        kept.reset(a.dim());
        dropped.reset(a.dim());
        self.keys.clear();
        self.keys.extend(self.sums.iter().map(|(index, value)| key(index, value)));
        self.sorted.clone_from(&self.keys);
        let place = self.sorted.len().saturating_sub(k);
        let cut = if place == 0 { 0 } else { *self.sorted.select_nth_unstable(place).1 };
        for ((index, value), &key) in self.sums.iter().zip(&self.keys) {
            if key >= cut { kept.push(index, value) } else { dropped.push(index, value) }
        }
    }
}

fn plain_add(a: SparseView<'_>, b: SparseView<'_>, out: &mut SparseVec) {
    let (mut i, mut j) = (0, 0);
    out.reset(a.dim());
    while i < a.len() && j < b.len() {
        let (left, right) = (a.indices()[i], b.indices()[j]);
        if left < right {
            out.push(left, a.values()[i]);
            i += 1;
        } else if right < left {
            out.push(right, b.values()[j]);
            j += 1;
        } else {
            out.push(left, a.values()[i] + b.values()[j]);
            i += 1;
            j += 1;
        }
    }
    a.iter().skip(i).chain(b.iter().skip(j)).for_each(|(index, value)| out.push(index, value));
}
