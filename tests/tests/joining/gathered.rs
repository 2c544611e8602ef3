//! Joining through an all-gather of the program's own.

use std::convert::Infallible;
use std::sync::{Arc, Barrier, Mutex};

use brevity::collectives::Result;
use brevity::transport::Error as Transport;
use brevity::{Group, Join};

use super::{KEY, SHORT};
use super::{as_ranks, missing, transport_error, works};

/// An all-gather between threads, which may change what it returns.
#[derive(Clone)]
struct Gather {
    parts: Arc<Mutex<Vec<Vec<u8>>>>,
    met: Arc<Barrier>,
}

impl Gather {
    fn new(world_size: u32) -> Self {
        let parts = Arc::new(Mutex::new(vec![Vec::new(); world_size as usize]));
        Self { parts, met: Arc::new(Barrier::new(world_size as usize)) }
    }

    fn all(&self, rank: u32, own: &[u8]) -> std::result::Result<Vec<Vec<u8>>, Infallible> {
        assert_eq!(own.len(), 128, "equal on all ranks");
        self.parts.lock().unwrap()[rank as usize] = own.to_vec();
        self.met.wait();
        Ok(self.parts.lock().unwrap().clone())
    }
}

fn join(rank: u32) -> Join {
    Join::new(rank, 3).interface("127.0.0.1").timeout(super::AMPLE)
}

/// What the ranks of three say if the gathered parts are changed.
fn changed(change: impl Fn(u32, &mut Vec<Vec<u8>>) + Clone + Send + 'static) -> Vec<Transport> {
    let gather = Gather::new(3);
    as_ranks(0..3, move |rank| {
        let joined: Result<Group> = join(rank).join_with(|own| {
            gather.all(rank, own).map(|mut all| {
                change(rank, &mut all);
                all
            })
        });
        transport_error(joined)
    })
}

fn assert_all_say(errors: &[Transport], expected: &str) {
    for error in errors {
        assert!(matches!(error, Transport::Gather { .. }) && error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn the_ranks_meet() {
    let gather = Gather::new(3);
    as_ranks(0..3, move |rank| {
        // Twice, and the groups live at the same time.
        let groups = [0, 1].map(|_| join(rank).join_with(|own| gather.all(rank, own)).unwrap());
        groups.iter().for_each(works);
    });
    let alone =
        Join::new(0, 1).join_with(|_| -> std::result::Result<_, Infallible> { panic!("nobody to ask") });
    works(&alone.unwrap());
}

#[test]
fn with_a_key_of_ones_own_nothing_secret_is_gathered() {
    let gather = Gather::new(3);
    let parts = Arc::clone(&gather.parts);
    as_ranks(0..3, move |rank| works(&join(rank).key(KEY).join_with(|own| gather.all(rank, own)).unwrap()));
    assert_eq!(parts.lock().unwrap()[0][22..54], [0; 32]);
}

#[test]
fn an_all_gather_that_fails() {
    for rank in 0..3 {
        let error = transport_error(join(rank).join_with(|_| Err("the store is gone")));
        assert_eq!(error.to_string(), "the all-gather for joining has failed: the store is gone");
    }
}

#[test]
fn an_all_gather_that_returns_something_else() {
    assert_all_say(&changed(|_, all| all.truncate(2)), "has returned 2 parts, expected 3");
    assert_all_say(&changed(|_, all| all.push(vec![0; 128])), "has returned 4 parts, expected 3");
    assert_all_say(&changed(|_, all| all[1].truncate(100)), "has returned 100 bytes of rank 1, expected 128");
    assert_all_say(&changed(|_, all| all[2].push(0)), "has returned 129 bytes of rank 2, expected 128");
    assert_all_say(&changed(|_, all| all.rotate_left(1)), "are parts in the order of ranks?");
    let swapped = changed(|rank, all| {
        let others = [(1, 2), (0, 2), (0, 1)][rank as usize];
        all.swap(others.0, others.1);
    });
    assert_all_say(&swapped, "as that of rank");
}

#[test]
fn an_all_gather_that_returns_zeros_of_others() {
    let errors = changed(|rank, all| all[(rank as usize + 1) % 3].fill(0));
    for (error, other) in errors.iter().zip(["1", "2"]) {
        let expected = format!("has returned something else than rank {other} has handed in");
        assert!(error.to_string().ends_with(&expected), "{error}");
    }
    assert_eq!(errors[2].to_string(), "the job id is only zeros: has rank 0 stored it yet?");
}

/// Rank 0 can't know, and waits until its deadline.
#[test]
fn a_changed_identifier_is_noticed() {
    let gather = Gather::new(2);
    let errors = as_ranks(0..2, move |rank| {
        let joined = Join::new(rank, 2).interface("127.0.0.1").timeout(SHORT).join_with(|own| {
            gather.all(rank, own).map(|mut all| {
                all[0][77] ^= u8::from(rank == 1);
                all
            })
        });
        transport_error(joined)
    });
    assert_eq!(missing(&errors[0]), [1]);
    assert_eq!(errors[1].to_string(), "the job id is damaged: its checksum is wrong");
}

/// Without waiting for its timeout.
#[test]
fn a_rank_with_wrong_settings_tells_the_others() {
    for wrong in 0..3 {
        let gather = Gather::new(3);
        let errors = as_ranks(0..3, move |rank| {
            let join = if rank == wrong { join(rank).key("short") } else { join(rank) };
            transport_error(join.join_with(|own| gather.all(rank, own)))
        });
        for (rank, error) in (0..).zip(&errors) {
            let expected = match rank == wrong {
                true => "key is too short".into(),
                false => {
                    format!("the all-gather for joining tells that rank {wrong} can't join: key is too short")
                }
            };
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
    }
}

#[test]
fn ranks_of_worlds_of_different_sizes() {
    let gather = Gather::new(3);
    let errors = as_ranks(0..3, move |rank| {
        let world_size = if rank == 1 { 4 } else { 3 };
        transport_error(Join::new(rank, world_size).join_with(|own| gather.all(rank, own)))
    });
    assert_eq!(errors[0].to_string(), "world size: rank 1 has 4, expected 3");
    assert!(errors[1].to_string().contains("has returned 3 parts, expected 4"), "{}", errors[1]);
}

#[test]
fn the_all_gather_is_the_only_place_to_meet() {
    let gathered = Join::new(1, 2).id(super::loopback_id()).join_with(|_| Err("not needed"));
    assert_eq!(
        transport_error(gathered).to_string(),
        "the all-gather is set beside id: expected only one of the two"
    );
}
