//! Reductions in the fixed order against its definition, bit by bit.

use std::sync::Arc;

use bytemuck::{bytes_of, cast_slice, cast_slice_mut};
use half::{bf16, f16};

use super::*;
use crate::description::mix;

const LENGTHS: [usize; 5] = [0, 1, 7, 1000, 5000];

/// The definition: guests are added, then neighbours, until one is left.
fn defined<T: Copy>(operands: &[T], op: &impl Fn(T, T) -> T) -> T {
    let members = 1 << operands.len().ilog2();
    let (mut sums, guests) = (operands[..members].to_vec(), &operands[members..]);
    sums.iter_mut().zip(guests).for_each(|(sum, guest)| *sum = op(*sum, *guest));
    while sums.len() > 1 {
        sums = sums.chunks(2).map(|pair| op(pair[0], pair[1])).collect();
    }
    sums[0]
}

/// Operands whose sums depend on the order.
fn operands<T>(ranks: usize, length: usize, make: impl Fn(f32) -> T) -> Vec<Vec<T>> {
    const VALUES: [f32; 8] = [1e8, 1.0, -1e8, 3e-8, -1.0, 0.3, 12345.678, -7e3];
    let value = |rank: usize, i: usize| {
        let bits = mix(mix(rank as u64 + 1) ^ i as u64);
        make(VALUES[(bits >> 8) as usize % 8] * ((bits & 15) as f32 + 0.1))
    };
    (0..ranks).map(|rank| (0..length).map(|i| value(rank, i)).collect()).collect()
}

/// All numbers of ranks, lengths and own ranks, with the own operand apart and in the output.
fn check<T: Element>(reducer: &Reducer, make: impl Fn(f32) -> T, result: impl Fn(&[T]) -> T) {
    for ranks in 1..=33 {
        for length in LENGTHS {
            let operands = operands(ranks, length, &make);
            let column = |i: usize| operands.iter().map(|operand| operand[i]).collect::<Vec<T>>();
            let expected: Vec<T> = (0..length).map(|i| result(&column(i))).collect();
            for own in 0..ranks {
                let slices = operands.iter().map(|operand| Some(cast_slice(operand)));
                let mut slices: Vec<Option<&[u8]>> = slices.collect();
                for in_place in [false, true] {
                    let mut out = vec![make(77.0); length];
                    if in_place {
                        out.copy_from_slice(&operands[own]);
                        slices[own] = None;
                    }
                    reducer.reduce_in_order(&slices, own as u32, cast_slice_mut(&mut out)).unwrap();
                    let differs = out.iter().zip(&expected).position(|(a, b)| bytes_of(a) != bytes_of(b));
                    assert_eq!(differs, None, "{length} {}, rank {own} of {ranks}", T::TYPE);
                }
            }
        }
    }
}

#[test]
fn the_order_matters_to_the_operands() {
    let operands = operands(9, 1000, |value| value);
    let columns = (0..1000).map(|i| operands.iter().map(|operand| operand[i]).collect::<Vec<f32>>());
    let differing = columns.filter(|x| defined(x, &|a, b| a + b) != x.iter().sum::<f32>());
    let differing = differing.count();
    assert!(differing > 100, "{differing}");
}

#[test]
fn sums_of_f32_have_the_fixed_order() {
    let sum = Reducer::of(DataType::F32, ReduceOp::Sum).unwrap();
    check(&sum, |value| value, |x| defined(x, &|a, b| a + b));
}

#[test]
fn averages_of_f32_are_divided_at_the_end() {
    let average = Reducer::of(DataType::F32, ReduceOp::Average).unwrap();
    check(&average, |value| value, |x: &[f32]| defined(x, &|a, b| a + b) / x.len() as f32);
}

#[test]
fn halves_are_summed_in_f32() {
    let sum = Reducer::of(DataType::F16, ReduceOp::Sum).unwrap();
    let widened = |x: &[f16]| x.iter().map(|value| value.to_f32()).collect::<Vec<_>>();
    let make = |value: f32| f16::from_f32(value / 1e5);
    check(&sum, make, |x| f16::from_f32(defined(&widened(x), &|a, b| a + b)));

    let average = Reducer::of(DataType::Bf16, ReduceOp::Average).unwrap();
    let widened = |x: &[bf16]| x.iter().map(|value| value.to_f32()).collect::<Vec<_>>();
    let result = |x: &[bf16]| bf16::from_f32(defined(&widened(x), &|a, b| a + b) / x.len() as f32);
    check(&average, bf16::from_f32, result);
}

#[test]
fn exact_types_are_reduced() {
    let product = Reducer::of(DataType::I64, ReduceOp::Product).unwrap();
    check(&product, |value| value as i64, |x: &[i64]| x.iter().fold(1, |a, b| a.wrapping_mul(*b)));
    let max = Reducer::of(DataType::F64, ReduceOp::Max).unwrap();
    check(&max, f64::from, |x: &[f64]| x.iter().copied().fold(f64::NEG_INFINITY, f64::max));
    let xor = Reducer::of(DataType::Bool, ReduceOp::Xor).unwrap();
    let make = |value: f32| Bool::from(value > 0.5);
    check(&xor, make, |x| Bool::from(x.iter().filter(|x| x.get()).count() % 2 == 1));
}

/// It has the order, too; means of two are not associative.
#[test]
fn reductions_of_the_program_have_the_fixed_order() {
    let mean = Reduction::new("mean of two", |into: &mut [f32], from| {
        into.iter_mut().zip(from).for_each(|(into, from)| *into = (*into + from) / 2.0);
        Ok(())
    });
    check(&mean.reducer().unwrap(), |value| value, |x| defined(x, &|a, b| (a + b) / 2.0));
}

/// Elements that are larger than a block, at aligned addresses.
#[test]
fn large_elements_are_blocks_of_their_own() {
    const BYTES: usize = 9000;
    let sum = UserReduction::new("sum of large elements", BYTES, |into, from| {
        assert!(into.len().is_multiple_of(BYTES) && into.len() == from.len());
        let (into, from): (&mut [u64], &[u64]) = (cast_slice_mut(into), cast_slice(from));
        into.iter_mut().zip(from).for_each(|(into, from)| *into += from);
        Ok(())
    });
    let reducer = Reducer::User(Arc::new(sum), DataType::Bytes);
    let operands: Vec<Vec<u64>> = (0..13).map(|rank| vec![1 << rank; 3 * BYTES / 8]).collect();
    let slices: Vec<Option<&[u8]>> = operands.iter().map(|operand| Some(cast_slice(operand))).collect();
    let mut out = vec![0_u64; 3 * BYTES / 8];
    reducer.reduce_in_order(&slices, 9, cast_slice_mut(&mut out)).unwrap();
    assert!(out.iter().all(|value| *value == (1 << 13) - 1));
}

/// More operands than the scratch on the thread's stack is for.
#[test]
fn many_operands_are_summed() {
    for (ranks, data) in [(255, DataType::F32), (256, DataType::F32), (300, DataType::Bf16)] {
        let reducer = Reducer::of(data, ReduceOp::Sum).unwrap();
        let bytes = 3000 * data.bytes();
        let one = if data == DataType::F32 { vec![1.0_f32; 3000] } else { vec![] };
        let one_half = vec![bf16::ONE; 3000];
        let operand: &[u8] = if one.is_empty() { cast_slice(&one_half) } else { cast_slice(&one) };
        let mut out = vec![0_u64; bytes / 8];
        let out: &mut [u8] = cast_slice_mut(&mut out);
        reducer.reduce_in_order(&vec![Some(operand); ranks], 200, out).unwrap();
        if data == DataType::F32 {
            assert!(cast_slice::<u8, f32>(out).iter().all(|sum| *sum == ranks as f32));
        } else {
            assert!(cast_slice::<u8, bf16>(out).iter().all(|sum| *sum == bf16::from_f32(ranks as f32)));
        }
    }
}

#[test]
#[should_panic(expected = "rank 2 has no operand")]
fn another_operand_that_is_missing_is_a_defect() {
    let sum = Reducer::of(DataType::U8, ReduceOp::Sum).unwrap();
    let _ = sum.reduce_in_order(&[Some(&[1]), Some(&[1]), None], 1, &mut [0]);
}
