//! Saved states with numbers that no rank has, and correct checksums.

use brevity_collectives::Group;
use brevity_compress::state;

use super::list::{List, Word, load};
use super::method::{Method, Rule};
use super::{ParameterServer, ServerBuilder};
use crate::Error;

const LEN: usize = 4;

/// The places of numbers in the head of a state.
const WORKERS: usize = 4;
const SERVERS: usize = 5;

fn builder() -> ServerBuilder {
    let builder = ParameterServer::builder(&Group::solo()).tensor("all", [LEN]);
    builder.method(Method::gradient_dropping(0.25)).rule(Rule::AdaGrad { epsilon: 1e-8 }).keep_pushes()
}

type Change<'a> = &'a dyn Fn(&mut Parts);

/// The state of a server of one rank, after one step.
struct Parts {
    head: Vec<u64>,
    residual: Vec<f32>,
    aside: Vec<Word>,
    steps: Vec<u64>,
    /// The clock, and what was applied of each worker.
    numbers: Vec<u64>,
    model: Vec<f32>,
    squares: Vec<f32>,
}

impl Parts {
    fn new() -> Self {
        let (mut parameters, mut bytes) = ([vec![0.0f32; LEN]], Vec::new());
        let mut server = builder().build(&parameters).unwrap();
        server.fetch(&mut parameters).unwrap();
        server.step(&[[1.0, 2.0, 3.0, 4.0]], 1.0, &mut parameters).unwrap();
        server.save(&mut bytes).unwrap();
        let from = &mut &bytes[..];
        let head: Vec<u64> = load(11, from).unwrap();
        let (residual, aside) = (load(LEN, from).unwrap(), load(head[9] as usize / 4, from).unwrap());
        let (steps, numbers) = (load(1, from).unwrap(), load(2, from).unwrap());
        let (model, squares) = (load(LEN, from).unwrap(), load(LEN, from).unwrap());
        assert!(from.is_empty());
        assert_eq!((head[WORKERS], head[SERVERS]), (1, 1));
        Self { head, residual, aside, steps, numbers, model, squares }
    }

    fn bytes(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let to = &mut bytes;
        state::save(&List::of(self.head), to).unwrap();
        state::save(&List::of(self.residual), to).unwrap();
        state::save(&List::of(self.aside), to).unwrap();
        state::save(&List::of(self.steps), to).unwrap();
        state::save(&List::of(self.numbers), to).unwrap();
        state::save(&List::of(self.model), to).unwrap();
        state::save(&List::of(self.squares), to).unwrap();
        bytes
    }
}

#[test]
fn numbers_that_no_rank_has_are_refused() {
    let resumed = |change: Change<'_>| {
        let mut parts = Parts::new();
        change(&mut parts);
        builder().resume(&mut &parts.bytes()[..]).map(drop)
    };
    resumed(&|_| {}).unwrap();
    resumed(&|parts| parts.model[0] = -f32::MAX / 4.0).unwrap();
    let forged: [(&str, Change<'_>); 9] = [
        ("no shard", &|parts| parts.model[1] = -1e38),
        ("no shard", &|parts| parts.squares[2] = -1.0),
        ("no shard", &|parts| parts.numbers[0] = u64::MAX),
        ("no shard", &|parts| parts.numbers[1] = u64::MAX),
        ("no server", &|parts| parts.head[SERVERS] = 1 << 61),
        ("no server", &|parts| parts.head[SERVERS] = u64::from(u32::MAX)),
        ("no server", &|parts| parts.head[WORKERS] = u64::MAX),
        ("no worker", &|parts| parts.steps[0] = u64::MAX),
        // The number of a push that is kept.
        ("no worker", &|parts| parts.aside[2..4].fill([0xff; 4])),
    ];
    for (number, (expected, change)) in forged.into_iter().enumerate() {
        let refused = resumed(change);
        assert!(matches!(refused, Err(Error::State(_))), "{number}: {refused:?}");
        let text = refused.unwrap_err().to_string();
        assert!(text.contains(expected), "{number}: {text}");
    }
}
