//! Tests of the tables, of the program of the order, and of reductions of the program.

use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use brevity_compress::float_modes;

use super::*;
use crate::description::{Operation, element_name, reduction_name};
use crate::error::Error;

#[test]
fn names_and_numbers_are_read_back() {
    for (i, &data) in DataType::ALL.iter().enumerate() {
        assert_eq!(usize::from(data.number()), i + 1);
        assert_eq!(DataType::from_number(data.number()), Some(data));
        assert_eq!(data.to_string().parse(), Ok(data));
        assert_eq!(element_name(data.number()), Some(data.name()));
    }
    for (i, &op) in ReduceOp::ALL.iter().enumerate() {
        assert_eq!(usize::from(op.number()), i + 1);
        assert_eq!(ReduceOp::from_number(op.number()), Some(op));
        assert_eq!(op.to_string().parse(), Ok(op));
        assert_eq!(reduction_name(op.number()), Some(op.name()));
    }
    let names = DataType::ALL.iter().map(|data| data.name()).collect::<Vec<_>>().join(" ");
    assert_eq!(names, "f32 f64 i32 i64 u32 u64 u8 i8 i16 u16 f16 bf16 bool bytes");
    let names = ReduceOp::ALL.iter().map(|op| op.name()).collect::<Vec<_>>().join(" ");
    assert_eq!(names, "sum average max min product and or xor");
    assert_eq!((DataType::from_number(0), DataType::from_number(15)), (None, None));
    assert_eq!((ReduceOp::from_number(0), ReduceOp::from_number(9)), (None, None));
    assert_eq!(
        "mean".parse::<ReduceOp>().unwrap_err().to_string(),
        "\"mean\" is no reduction: use one of sum, average, max, min, product, and, or, xor"
    );
    assert_eq!("F32".parse::<DataType>().unwrap_err().what, "element type");
}

/// Numbers are on the wire, and in C.
#[test]
fn former_numbers_stay() {
    let names = (1..8).map(|number| DataType::from_number(number).unwrap().name());
    assert!(names.eq(["f32", "f64", "i32", "i64", "u32", "u64", "u8"]));
    let names = (1..5).map(|number| ReduceOp::from_number(number).unwrap().name());
    assert!(names.eq(["sum", "average", "max", "min"]));
}

#[test]
fn elements_are_as_large_as_their_types() {
    fn check<T: Element>() {
        assert_eq!(T::TYPE.bytes(), size_of::<T>());
    }
    check::<f64>();
    check::<i16>();
    check::<half::f16>();
    check::<half::bf16>();
    check::<Bool>();
    check::<Byte>();
    assert_eq!(DataType::ALL.iter().map(|data| data.bytes()).sum::<usize>(), 48);
}

#[test]
fn bytes_of_a_bool_are_true_or_false() {
    assert!(Bool(2) == Bool::from(true) && Bool(2) != Bool::from(false) && Bool(0) == false.into());
    assert!(bool::from(Bool(255)) && !Bool::default().get());
    let state = RandomState::new();
    assert_eq!(state.hash_one(Bool(2)), state.hash_one(Bool(1)));
}

/// Which operation is defined for which class of types.
#[test]
fn only_defined_reductions_have_a_kernel() {
    let floats = [DataType::F32, DataType::F64, DataType::F16, DataType::Bf16];
    for &data in DataType::ALL {
        for &op in ReduceOp::ALL {
            let is_bitwise = [ReduceOp::And, ReduceOp::Or, ReduceOp::Xor].contains(&op);
            let expected = match data {
                DataType::Bytes => false,
                DataType::Bool => is_bitwise,
                data if floats.contains(&data) => !is_bitwise,
                _ => op != ReduceOp::Average,
            };
            assert_eq!(op.is_defined_for(data), expected, "{op} of {data}");
            match Reducer::of(data, op) {
                Ok(reducer) => {
                    let half = [DataType::F16, DataType::Bf16].contains(&data);
                    let rounds = [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Product].contains(&op);
                    assert!(expected, "{op} of {data}");
                    assert_eq!((reducer.size(), reducer.is_wide()), (data.bytes(), half), "{op} of {data}");
                    assert_eq!(reducer.wide(), if half { 4 } else { data.bytes() }, "{op} of {data}");
                    assert_eq!(reducer.is_exact(), !(rounds && floats.contains(&data)), "{op} of {data}");
                    assert_eq!(reducer.number(), op.number(), "{op} of {data}");
                    assert_eq!(reducer.data(), data, "{op} of {data}");
                }
                Err(Error::Reduction { reduction, element }) => {
                    assert_eq!((expected, reduction, element), (false, op.name(), data.name()));
                }
                Err(error) => panic!("{op} of {data}: {error}"),
            }
        }
    }
}

fn summing(name: &str) -> Reducer {
    let reduction = Reduction::new(name, |into: &mut [u32], from| {
        into.iter_mut().zip(from).for_each(|(into, from)| *into = into.wrapping_add(*from));
        Ok(())
    });
    reduction.reducer().unwrap()
}

/// A reduction of any type, which is not called.
fn named<T: bytemuck::Pod>(name: &str) -> Reducer {
    Reduction::new(name, |_: &mut [T], _: &[T]| Ok(())).reducer().unwrap()
}

#[test]
fn elements_and_reductions_are_described() {
    let describe = |reducer: &Reducer| reducer.describe(Operation::ALL_REDUCE, 5);
    let sum = describe(&Reducer::of(DataType::F32, ReduceOp::Sum).unwrap());
    assert_eq!((sum.to_string().as_str(), sum.detail), ("all-reduce of 5 f32 (sum)", 0));
    let user = describe(&named::<f32>("name"));
    assert_eq!(user.to_string(), "all-reduce of 5 f32 (the program's reduction)");
    // Types that the library doesn't know differ by their sizes.
    let (pair, triple) = (named::<[f32; 2]>("name"), named::<[f32; 3]>("name"));
    assert_eq!((pair.size(), pair.data()), (8, DataType::Bytes));
    assert_eq!(describe(&pair).to_string(), "all-reduce of 5 elements (the program's reduction)");
    let all = [user, describe(&pair), describe(&triple), describe(&named::<f32>("other name"))];
    for (place, description) in all.iter().enumerate() {
        assert!(all[..place].iter().all(|other| other != description), "{description:?}");
    }
    // As C makes it.
    let bytes = UserReduction::new("name", 8, |_, _| Ok(()));
    assert_eq!(describe(&Reducer::User(Arc::new(bytes), DataType::Bytes)), describe(&pair));
}

#[test]
fn a_type_has_only_its_operations() {
    let error = Reduction::<i32>::from(ReduceOp::Average).reducer().unwrap_err();
    assert!(matches!(error, Error::Reduction { reduction: "average", element: "i32" }), "{error}");
}

#[test]
fn a_reduction_of_the_program_is_called() {
    let user = summing("sum");
    assert_eq!((user.size(), user.wide(), user.is_exact(), user.number()), (4, 4, false, 9));
    assert_eq!(user.data(), DataType::U32);
    assert_eq!(reduction_name(user.number()), Some("the program's reduction"));

    let bytes = |values: [u32; 2]| -> [u8; 8] { bytemuck::cast(values) };
    let values = |bytes: [u8; 8]| -> [u32; 2] { bytemuck::pod_read_unaligned(&bytes) };
    let mut into = [1_u32, 2];
    let into: &mut [u8] = bytemuck::cast_slice_mut(&mut into);
    user.combine(into, bytemuck::cast_slice(&[10_u32, 20])).unwrap();
    user.take(into, bytemuck::cast_slice(&[100_u32, 200])).unwrap();
    assert_eq!(into, bytes([111, 222]));
    let mut out = [0_u32; 2];
    user.combine_from(bytemuck::cast_slice_mut(&mut out), into, bytemuck::cast_slice(&[1_u32, 2])).unwrap();
    assert_eq!(out, [112, 224]);
    let mut copy = [0_u8; 8];
    user.start(&mut copy, into);
    user.end_in_place(&mut copy, 2);
    assert_eq!(values(copy), [111, 222]);
    let mut end = [0_u8; 8];
    user.end(&mut end, &mut copy, 2);
    assert_eq!(values(end), [111, 222]);
}

#[test]
fn a_status_of_the_program_is_an_error() {
    let failing = UserReduction::new("failing", 3, |into, from| {
        assert_eq!((into.len() % 3, into.len()), (0, from.len()));
        if from[0] == 7 { Err(-5) } else { Ok(()) }
    });
    assert_eq!((failing.name(), failing.bytes()), ("failing", 3));
    let user = Reducer::User(Arc::new(failing), DataType::Bytes);
    user.combine(&mut [0; 6], &[1; 6]).unwrap();
    let errors = [
        user.combine(&mut [0; 6], &[7; 6]),
        user.take(&mut [0; 6], &[7; 6]),
        user.combine_from(&mut [0; 6], &[1; 6], &[7; 6]),
        user.reduce_in_order(&[Some(&[1; 6]), Some(&[1; 6]), Some(&[7; 6])], 0, &mut [0; 6]),
    ];
    for error in errors {
        let error = error.unwrap_err();
        assert!(matches!(&error, Error::User { name, status: -5 } if name == "failing"), "{error}");
        assert_eq!(error.to_string(), "the program's reduction \"failing\" failed with status -5");
    }
    // Nothing to combine.
    user.combine(&mut [], &[]).unwrap();
    user.reduce_in_order(&[Some(&[]), None], 1, &mut []).unwrap();
}

#[test]
fn a_panic_of_the_program_unwinds() {
    let user = Reduction::new("panicking", |_: &mut [i64], _| panic!("no")).reducer().unwrap();
    let (mut into, from) = ([0_u64], [0_u64]);
    let result = catch_unwind(AssertUnwindSafe(|| {
        user.in_mode(|| user.combine(bytemuck::cast_slice_mut(&mut into), bytemuck::cast_slice(&from)))
    }));
    assert!(result.is_err());
}

/// The library's reductions of floating-point numbers have the standard mode, others the thread's.
#[test]
fn modes_are_those_of_the_reductions() {
    let mode_of = |reducer: &Reducer| {
        let before = float_modes::float_mode();
        float_modes::set_float_mode(float_modes::FLUSHING);
        let inside = reducer.in_mode(float_modes::float_mode);
        float_modes::set_float_mode(before);
        inside
    };
    for data in [DataType::F32, DataType::F64, DataType::F16, DataType::Bf16] {
        for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Average] {
            assert_eq!(mode_of(&Reducer::of(data, op).unwrap()), float_modes::STANDARD, "{op} of {data}");
        }
    }
    let integers = Reducer::of(DataType::I32, ReduceOp::Sum).unwrap();
    assert_eq!(mode_of(&integers), float_modes::FLUSHING);
    assert_eq!(mode_of(&summing("mode")), float_modes::FLUSHING);
}
