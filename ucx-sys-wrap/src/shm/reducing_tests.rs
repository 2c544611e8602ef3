//! Reductions over slots, between threads with their own mappings, against the definition of the order.

use super::LocalGroup;
use super::slots::*;

/// Sums whose order matters, divided by the number of ranks: of `f32`, or of the upper halves of `f32`, whose
/// partial sums are `f32`.
struct Average {
    ranks: usize,
    is_half: bool,
    /// Bytes of an element, which may be several numbers.
    size: usize,
    fails: bool,
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect()
}

fn halves(bytes: &[u8]) -> Vec<f32> {
    let value = |half: &[u8]| f32::from_bits(u32::from(bytemuck::pod_read_unaligned::<u16>(half)) << 16);
    bytes.chunks_exact(2).map(value).collect()
}

impl Average {
    fn new(ranks: usize, is_half: bool) -> Self {
        Self { ranks, is_half, size: if is_half { 2 } else { 4 }, fails: false }
    }

    /// Bytes of a number.
    fn number(&self) -> usize {
        if self.is_half { 2 } else { 4 }
    }

    fn read(&self, bytes: &[u8]) -> Vec<f32> {
        if self.is_half { halves(bytes) } else { floats(bytes) }
    }

    fn add(&self, into: &mut [u8], from: &[f32]) -> Result<(), &'static str> {
        assert_eq!(into.len(), 4 * from.len());
        assert!(into.is_empty() || into.as_ptr().addr().is_multiple_of(4), "unaligned partial results");
        for (into, from) in into.chunks_exact_mut(4).zip(from) {
            let sum = bytemuck::pod_read_unaligned::<f32>(into) + from;
            into.copy_from_slice(bytemuck::bytes_of(&sum));
        }
        if self.fails { Err("as asked") } else { Ok(()) }
    }

    fn write(&self, into: &mut [u8], values: &[f32]) {
        for (into, value) in into.chunks_exact_mut(self.number()).zip(values) {
            let bits = value.to_bits() >> if self.is_half { 16 } else { 0 };
            into.copy_from_slice(&bits.to_ne_bytes()[..into.len()]);
        }
    }

    /// The six lines of the definition.
    fn defined(&self, operands: &[Vec<u8>]) -> Vec<u8> {
        let x: Vec<Vec<f32>> = operands.iter().map(|operand| self.read(operand)).collect();
        let sum = |a: &Vec<f32>, b: &Vec<f32>| -> Vec<f32> { a.iter().zip(b).map(|(a, b)| a + b).collect() };
        let members = 1 << x.len().ilog2();
        let mut y = x[..members].to_vec();
        for (guest, x) in x[members..].iter().enumerate() {
            y[guest] = sum(&y[guest], x);
        }
        while y.len() > 1 {
            y = y.chunks(2).map(|pair| sum(&pair[0], &pair[1])).collect();
        }
        y[0].iter_mut().for_each(|value| *value /= self.ranks as f32);
        let mut result = vec![0; operands[0].len()];
        self.write(&mut result, &y[0]);
        result
    }
}

impl Fold for Average {
    type Error = &'static str;

    fn size(&self) -> usize {
        self.size
    }

    fn wide(&self) -> usize {
        if self.is_half { 4 } else { self.size }
    }

    fn start(&self, into: &mut [u8], from: &[u8]) {
        assert_eq!(into.len(), from.len() / self.size() * self.wide());
        into.copy_from_slice(bytemuck::cast_slice(&self.read(from)));
    }

    fn take(&self, into: &mut [u8], from: &[u8]) -> Result<(), Self::Error> {
        self.add(into, &self.read(from))
    }

    fn combine(&self, into: &mut [u8], from: &[u8]) -> Result<(), Self::Error> {
        self.add(into, &floats(from))
    }

    fn end(&self, into: &mut [u8], from: &mut [u8]) {
        assert!(self.is_half, "of the same length");
        self.end_in_place(from);
        self.write(into, &floats(from));
    }

    fn end_in_place(&self, values: &mut [u8]) {
        let mut numbers = floats(values);
        numbers.iter_mut().for_each(|value| *value /= self.ranks as f32);
        values.copy_from_slice(bytemuck::cast_slice(&numbers));
    }
}

/// `count` large and small numbers of both signs: most orders of a sum differ in the result.
fn operand(fold: &Average, place: usize, count: usize) -> Vec<u8> {
    let mut state = (place as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let values = (0..count).map(|_| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let size = [1e8, 1.0, -1e8, 3e-8][(state >> 62) as usize];
        size * (1.0 + (state >> 40 & 0xffff) as f32 / 65_536.0)
    });
    let mut operand = vec![0; count * fold.number()];
    fold.write(&mut operand, &values.collect::<Vec<f32>>());
    operand
}

fn header() -> Header {
    Header { signature: crate::Signature([1; 16]), ..Header::default() }
}

/// Slots of `places` ranks, and a step.
fn ranks(places: usize) -> (Vec<Slots>, Step) {
    let world = LocalGroup::in_process(places as u32).unwrap();
    let mut ranks: Vec<Slots> = world.iter().map(Slots::new).collect();
    let steps: Vec<Step> = ranks.iter_mut().map(|slots| slots.take_steps(1)).collect();
    (ranks, steps[0])
}

/// Blocks of 64-byte alignment, in which the elements begin: results are compared bit by bit.
#[test]
fn reductions_are_in_the_fixed_order() {
    for places in 1..=9 {
        for is_half in [false, true] {
            let fold = Average::new(places, is_half);
            for count in [0, 1, 7, 1000, 5000] {
                let (mut ranks, step) = ranks(places);
                let operands: Vec<_> = (0..places).map(|place| operand(&fold, place, count)).collect();
                let expected = fold.defined(&operands);
                for (slots, operand) in ranks.iter_mut().zip(&operands) {
                    slots.write(step, 64, operand);
                    slots.publish(step, header());
                }
                for (place, slots) in ranks.iter_mut().enumerate() {
                    let what = format!("place {place} of {places}, {count}, half: {is_half}");
                    let mut data = operands[place].clone();
                    slots.reduce((step, 64), Part::InPlace(&mut data), false, &fold).unwrap();
                    assert!(data == expected, "in place: {what}");
                    let mut result = vec![7; data.len()];
                    let part = Part::Apart(&operands[place], &mut result);
                    slots.reduce((step, 64), part, false, &fold).unwrap();
                    assert!(result == expected, "apart: {what}");
                }
                // The others have read this rank's operand.
                let last = &mut ranks[places - 1];
                last.reduce((step, 64), Part::Published(&operands[places - 1]), true, &fold).unwrap();
                if places > 1 {
                    let mut found = vec![0; expected.len()];
                    ranks[0].read(places - 1, step, 64, &mut found);
                    assert!(found == expected, "published by the last of {places}, {count}, half: {is_half}");
                }
            }
        }
    }
}

#[test]
fn lines_are_reduced_in_the_fixed_order() {
    for places in [1, 2, 3, 4, 5, 8, 9] {
        for is_half in [false, true] {
            let fold = Average::new(places, is_half);
            for (before, count) in
                [(0, 0), (0, 1), (0, 16), (4, 3), (2, 17), (0, 512 / fold.size()), (8, 100)]
            {
                let (mut ranks, step) = ranks(places);
                let all = |place| operand(&fold, place, before + count);
                let operands: Vec<_> = (0..places).map(all).collect();
                let offset = before * fold.size();
                let expected = &fold.defined(&operands)[offset..];
                for (slots, operand) in ranks.iter_mut().zip(&operands) {
                    slots.publish_inline(step, header(), operand);
                }
                for (place, slots) in ranks.iter_mut().enumerate() {
                    let mut data = operands[place][offset..].to_vec();
                    slots.reduce_inline((step, offset), Part::InPlace(&mut data), &fold).unwrap();
                    assert!(data == expected, "place {place} of {places}, {count} from {before} on");
                    let mut result = vec![7; data.len()];
                    let part = Part::Apart(&operands[place][offset..], &mut result);
                    slots.reduce_inline((step, offset), part, &fold).unwrap();
                    assert!(result == expected, "place {place} of {places}, {count} from {before} on, apart");
                }
            }
        }
    }
}

/// Elements of a program may be longer than blocks, which then take their scratch from the heap.
#[test]
fn long_elements_are_reduced() {
    for places in [3, 8] {
        let fold = Average { size: 4096, ..Average::new(places, false) };
        let (mut ranks, step) = ranks(places);
        let operands: Vec<_> = (0..places).map(|place| operand(&fold, place, 5 * 1024)).collect();
        for (slots, operand) in ranks.iter_mut().zip(&operands) {
            slots.write(step, 0, operand);
            slots.publish(step, header());
        }
        let expected = fold.defined(&operands);
        for (place, slots) in ranks.iter_mut().enumerate() {
            let mut data = operands[place].clone();
            slots.reduce((step, 0), Part::InPlace(&mut data), false, &fold).unwrap();
            assert!(data == expected, "place {place} of {places}");
        }
    }
}

#[test]
fn a_reduction_that_fails_ends_with_its_error() {
    for is_half in [false, true] {
        let fold = Average { fails: true, ..Average::new(3, is_half) };
        let (mut ranks, step) = ranks(3);
        for slots in &mut ranks {
            slots.publish_inline(step, header(), &[0; 64]);
        }
        let mut data = [0u64; 200];
        let data: &mut [u8] = bytemuck::cast_slice_mut(&mut data);
        let line = ranks[1].reduce_inline((step, 0), Part::InPlace(&mut data[..64]), &fold);
        let chunk = ranks[1].reduce((step, 0), Part::InPlace(data), true, &fold);
        assert_eq!((line, chunk), (Err("as asked"), Err("as asked")));
    }
}
