//! Saved state is loaded whole or not at all.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod faults;

use std::io::{self, Read, Write};

use brevity_compress::Error;
use brevity_compress::feedback::Residual;
use brevity_compress::generator::Generator;
use brevity_compress::state::{self, Fault, Reader, State, Writer};
use faults::{check_damage, fault};
use proptest::prelude::*;

fn residual(values: &[f32]) -> Residual {
    let mut residual = Residual::new(values.len());
    residual.accumulate(values).unwrap();
    residual
}

/// Two parts and some numbers.
#[derive(Debug, Clone)]
struct Pair {
    residual: Residual,
    generator: Generator,
    steps: u64,
    norm: f64,
}

impl State for Pair {
    fn kind(&self) -> [u8; 4] {
        *b"pair"
    }

    fn shape(&self) -> Vec<u64> {
        self.residual.shape()
    }

    fn write_contents(&self, contents: &mut Writer) {
        contents.part(&self.residual);
        contents.part(&self.generator);
        contents.u64(self.steps);
        contents.f64(self.norm);
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), Error> {
        contents.part(&mut self.residual)?;
        contents.part(&mut self.generator)?;
        self.steps = contents.u64()?;
        self.norm = contents.f64()?;
        Ok(())
    }
}

fn pair(values: &[f32], steps: u64) -> Pair {
    Pair { residual: residual(values), generator: Generator::new(steps), steps, norm: 0.5 }
}

proptest! {
    #[test]
    fn what_was_saved_is_loaded(
        values in prop::collection::vec(-1e30_f32..1e30, 0..100),
        steps in any::<u64>(),
    ) {
        let mut before = pair(&values, steps);
        let draws = steps % 5;
        for _ in 0..draws {
            before.generator.next_u64();
        }
        let mut after = pair(&vec![7.0; values.len()], !steps);
        state::from_bytes(&mut after, &state::to_bytes(&before)).unwrap();
        prop_assert_eq!(after.residual.values(), &values[..]);
        prop_assert_eq!((after.steps, after.norm), (steps, 0.5));
        prop_assert_eq!(after.generator.next_u64(), before.generator.next_u64());
        // The residual is as good as the saved one: an overflow is still refused.
        let mut after = after.residual;
        prop_assert_eq!(
            after.accumulate(&vec![f32::MAX; values.len()]),
            before.residual.accumulate(&vec![f32::MAX; values.len()])
        );
    }

    #[test]
    fn any_bytes_are_refused_or_loaded(
        bytes in prop::collection::vec(any::<u8>(), 0..100),
        keep in 0_usize..60,
    ) {
        let whole = state::to_bytes(&pair(&[1.0, 2.0], 3));
        let mut all = whole[..keep.min(whole.len())].to_vec();
        all.extend(bytes);
        let mut into = pair(&[0.0, 0.0], 4);
        let expected = if all == whole { Ok(()) } else { Err(()) };
        prop_assert_eq!(state::from_bytes(&mut into, &all).map_err(drop), expected);
    }
}

#[test]
fn every_flipped_bit_and_every_cut_is_refused_and_changes_nothing() {
    let bytes = state::to_bytes(&pair(&[1.0, -2.0, 3.5], 9));
    let mut into = pair(&[4.0; 3], 1);
    check_damage(&bytes, &mut into);
    state::from_bytes(&mut into, &bytes).unwrap();
    assert_eq!(state::to_bytes(&into), bytes);
}

#[test]
fn what_does_not_fit_is_named() {
    let bytes = state::to_bytes(&residual(&[1.0, 2.0]));
    let mut other = Residual::new(3);
    assert_eq!(
        fault(state::from_bytes(&mut other, &bytes)),
        Fault::Shape { found: vec![2], expected: vec![3] }
    );
    let mut generator = Generator::new(1);
    let kinds = Fault::Kind { found: "resi".into(), expected: "rand".into() };
    assert_eq!(fault(state::from_bytes(&mut generator, &bytes)), kinds);
    let mut own = Residual::new(2);
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(fault(state::from_bytes(&mut own, &longer)), Fault::Trailing { bytes: 1 });
    assert_eq!(own.values(), [0.0, 0.0]);
    assert_eq!(fault(state::from_bytes(&mut own, b"PK\x03\x04 and more bytes")), Fault::NoState);
}

/// An object whose contents no other object accepts.
struct Impostor(&'static [u8; 4], Vec<u64>, Vec<u8>);

impl State for Impostor {
    fn kind(&self) -> [u8; 4] {
        *self.0
    }

    fn shape(&self) -> Vec<u64> {
        self.1.clone()
    }

    fn write_contents(&self, contents: &mut Writer) {
        contents.bytes(&self.2);
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), Error> {
        contents.bytes(self.2.len() + 1).map(drop)
    }
}

#[test]
fn impossible_contents_are_refused_although_the_checksum_is_right() {
    let nan = state::to_bytes(&Impostor(b"resi", vec![1], f32::NAN.to_le_bytes().to_vec()));
    let refused = state::from_bytes(&mut Residual::new(1), &nan);
    assert!(matches!(refused, Err(Error::NonFinite { index: 0, .. })), "{refused:?}");
    let zeros = state::to_bytes(&Impostor(b"rand", vec![], vec![0; 32]));
    let refused = fault(state::from_bytes(&mut Generator::new(1), &zeros));
    assert_eq!(refused, Fault::Contents { what: "a generator of all zeros" });
    let short = state::to_bytes(&Impostor(b"resi", vec![1], vec![0; 3]));
    assert_eq!(
        fault(state::from_bytes(&mut Residual::new(1), &short)),
        Fault::Length { found: 3, expected: 4 }
    );
    let mut greedy = Impostor(b"imps", vec![], vec![0; 3]);
    let bytes = state::to_bytes(&greedy);
    assert_eq!(fault(state::from_bytes(&mut greedy, &bytes)), Fault::Contents { what: "it ends early" });
}

#[test]
fn states_follow_each_other_in_a_file() {
    let mut file = Vec::new();
    state::save(&residual(&[1.0]), &mut file).unwrap();
    state::save(&residual(&[2.0, 3.0]), &mut file).unwrap();
    let (mut from, mut one, mut two) = (&file[..], Residual::new(1), Residual::new(2));
    state::load(&mut one, &mut from).unwrap();
    state::load(&mut two, &mut from).unwrap();
    assert_eq!((one.values(), two.values(), from), (&[1.0][..], &[2.0, 3.0][..], &[][..]));
}

/// A disk that is full and can't be read either.
struct Broken;

impl Write for Broken {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Broken {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

#[test]
fn a_broken_disk_is_reported() {
    let mut residual = residual(&[1.0]);
    assert_eq!(fault(state::save(&residual, &mut Broken)), Fault::Io(io::ErrorKind::StorageFull));
    assert_eq!(fault(state::load(&mut residual, &mut Broken)), Fault::Io(io::ErrorKind::PermissionDenied));
    assert_eq!(residual.values(), [1.0]);
}
