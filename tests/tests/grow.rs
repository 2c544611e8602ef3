//! Lost ranks that come back to their job, as threads of one process; as processes in `grow_processes.rs`.

use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use brevity::collectives::Error;
use brevity::transport::Error as Transport;
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{GradientExchange, Group, Join, Policy, ReduceOp, Settings};
use brevity_testing::worlds::reserved_port;

/// Only a hang reaches it.
const AMPLE: Duration = Duration::from_secs(60);

const WORLD_SIZE: u32 = 4;

const KEY: &str = "correct horse battery staple";

/// The job of a test, on a port that stays reserved.
#[derive(Clone, Copy)]
struct Job {
    port: u16,
}

impl Job {
    fn join(self, rank: u32, incarnation: u32) -> Join {
        let address = format!("127.0.0.1:{}", self.port);
        let join = Join::new(rank, WORLD_SIZE).address(&address).port_reserved(true).key(KEY);
        join.timeout(AMPLE).incarnation(incarnation)
    }
}

/// Who is lost in a round, who comes back, and whether all of the job are there then.
type Round = (&'static [u32], &'static [u32], bool);

/// Runs all ranks through the rounds, and gives what each last group is: its members' first numbers, and
/// those of its ranks that have come back at last.
fn live(rounds: &'static [Round]) -> Vec<(u32, Vec<u32>, Vec<u32>)> {
    let (_reserved, port) = reserved_port();
    let job = Job { port };
    let (sender, results) = mpsc::channel();
    // Nobody comes back before the round in which it is to.
    let begins = Arc::new(Barrier::new(WORLD_SIZE as usize));
    for rank in 0..WORLD_SIZE {
        let (sender, begins) = (sender.clone(), Arc::clone(&begins));
        thread::spawn(move || sender.send(live_rank(job, rank, rounds, &begins)));
    }
    drop(sender);
    let mut last: Vec<_> = (0..WORLD_SIZE).filter_map(|_| results.recv_timeout(2 * AMPLE).unwrap()).collect();
    last.sort();
    last
}

fn live_rank(job: Job, own: u32, rounds: &[Round], begins: &Barrier) -> Option<(u32, Vec<u32>, Vec<u32>)> {
    let mut group = Some(job.join(own, 0).join().unwrap());
    let mut incarnation = 0;
    for (lost, back, is_whole) in rounds {
        begins.wait();
        match group.take() {
            Some(whole) if lost.contains(&own) => drop(whole),
            Some(whole) => {
                let mut ones = [1_u32];
                assert!(whole.all_reduce(&mut ones, ReduceOp::Sum).is_err(), "a rank has gone");
                let left = whole.shrink().unwrap();
                let wait = if *is_whole { AMPLE } else { Duration::from_secs(2) };
                let grown = left.grow(wait).unwrap();
                assert_eq!(grown.is_same(&left), back.is_empty());
                if !back.is_empty() {
                    // In groups of the old world nobody goes on any more.
                    for old in [&left, &whole] {
                        assert!(matches!(old.shrink(), Err(Error::HasGrown)), "{:?}", old.members());
                    }
                }
                group = Some(grown);
            }
            None => {}
        }
        if back.contains(&own) {
            incarnation += 1;
            group = Some(job.join(own, incarnation).join().unwrap());
        }
        if let Some(group) = &group {
            let mut sum = [1_u32, group.first_ranks()[group.rank() as usize].0];
            group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(sum[0], group.world_size());
            assert_eq!(sum[1], group.first_ranks().iter().map(|rank| rank.0).sum::<u32>());
        }
    }
    let group = group?;
    group.barrier().unwrap();
    Some((own, group.first_ranks().iter().map(|rank| rank.0).collect(), group.returned()))
}

fn all_have(last: &[(u32, Vec<u32>, Vec<u32>)], members: &[u32], returned: &[u32]) {
    assert_eq!(last.iter().map(|(own, ..)| *own).collect::<Vec<_>>(), members);
    for (_, found, new) in last {
        assert_eq!((&found[..], &new[..]), (members, returned));
    }
}

#[test]
fn a_lost_rank_comes_back() {
    all_have(&live(&[(&[2], &[2], true)]), &[0, 1, 2, 3], &[2]);
}

#[test]
fn rank_0_and_the_next_one_come_back() {
    all_have(&live(&[(&[0], &[0], true), (&[1], &[1], true), (&[0], &[0], true)]), &[0, 1, 2, 3], &[0]);
}

#[test]
fn some_come_back_now_and_others_later() {
    all_have(&live(&[(&[3], &[], false), (&[1], &[1], false)]), &[0, 1, 2], &[1]);
    all_have(&live(&[(&[0], &[], false), (&[1], &[0, 1], true)]), &[0, 1, 2, 3], &[0, 1]);
}

#[test]
fn nobody_is_waited_for_if_nobody_is_lost() {
    let (_reserved, port) = reserved_port();
    let job = Job { port };
    let ranks = (0..WORLD_SIZE).map(|rank| {
        thread::spawn(move || {
            let (group, start) = (job.join(rank, 0).join().unwrap(), Instant::now());
            assert!(group.grow(AMPLE).unwrap().is_same(&group));
            assert!(start.elapsed() < AMPLE / 2 && group.returned().is_empty());
            group.barrier().unwrap();
        })
    });
    ranks.collect::<Vec<_>>().into_iter().for_each(|rank| rank.join().unwrap());
}

#[test]
fn a_process_that_is_not_received_is_told() {
    let (_reserved, port) = reserved_port();
    let join = Job { port }.join(1, 1).timeout(Duration::from_millis(300));
    let error = join.join().map(|_| ()).unwrap_err();
    let Error::Transport(Transport::NotTakenBack { rank, .. }) = &error else { panic!("{error}") };
    assert_eq!(rank.0, 1);
    assert!(error.to_string().contains("call grow"), "{error}");
}

#[test]
fn a_simulated_job_can_not_grow() {
    let cluster = Cluster::new(2, Links::new(1e-6, 1e-9));
    run(cluster, |transport| {
        let group = Group::new(transport, Settings::default());
        async move {
            let error = group.grow(AMPLE).map(|_| ()).unwrap_err();
            assert!(matches!(&error, Error::NotGrown { why, .. } if why.contains("simulated")), "{error}");
        }
    })
    .unwrap();
}

/// The lowest rank can't listen: another program has the place of return.
#[test]
fn a_place_that_is_taken_is_told_on_all_ranks() {
    let (_reserved, port) = reserved_port();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = taken.local_addr().unwrap().to_string();
    let job = Job { port };
    let ranks = (0..3).map(|rank| {
        let place = place.clone();
        thread::spawn(move || {
            let address = format!("127.0.0.1:{}", job.port);
            let join = Join::new(rank, 3).address(&address).port_reserved(true).key(KEY);
            let group = join.place_of_return(&place).join().unwrap();
            if rank == 2 {
                return String::new();
            }
            assert!(group.barrier().is_err());
            let left = group.shrink().unwrap();
            let error = left.grow(Duration::from_secs(1)).map(|_| ()).unwrap_err();
            assert!(matches!(error, Error::NotGrown { .. }), "{error}");
            // The group is as before.
            left.barrier().unwrap();
            error.to_string()
        })
    });
    let told: Vec<String> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
    assert_eq!(told[0], told[1]);
    assert!(
        told[0].starts_with("rank 0 can't take lost ranks back: ") && told[0].contains(&place),
        "{told:?}"
    );
}

/// The elements of each tensor.
const LENGTH: usize = 60;

const TENSORS: [&str; 4] = ["dense", "top-k", "gTop-k", "Ok-Topk"];

/// A sum for each element of each tensor.
type Sums = Vec<Vec<f32>>;

fn exchange(group: &Group) -> GradientExchange {
    let builder = GradientExchange::builder(group).keep_going();
    let policies = [Policy::dense(), Policy::topk(0.1), Policy::gtopk(0.05), Policy::oktopk(0.1)];
    let tensors = TENSORS.into_iter().zip(policies);
    tensors.fold(builder, |builder, (name, policy)| builder.tensor(name, [LENGTH], policy)).build().unwrap()
}

/// Gradients of whole numbers.
fn gradients(rank: u32, step: u32) -> Sums {
    let value = |tensor: usize, place: usize| {
        let mixed = (place * 31 + tensor * 17 + step as usize * 13 + rank as usize * 7) % 23;
        mixed as f32 - 11.0
    };
    (0..TENSORS.len()).map(|tensor| (0..LENGTH).map(|place| value(tensor, place)).collect()).collect()
}

fn add(sums: &mut [Vec<f32>], more: &[Vec<f32>], factor: f32) {
    for (sums, more) in sums.iter_mut().zip(more) {
        sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += factor * more);
    }
}

fn residuals(exchange: &GradientExchange) -> Sums {
    TENSORS.map(|name| exchange.residual(name).unwrap()).into()
}

/// One rank that hands in gradients, dies when it is its turn, and comes back. Gives what was delivered, and
/// its residuals; adds to the ledger what it hands in, less what it takes with it.
fn live_in_steps(job: Job, own: u32, victims: &[u32], ledger: &Mutex<Sums>) -> (Sums, Sums) {
    let mut group = job.join(own, 0).join().unwrap();
    let mut exchange_of = exchange(&group);
    let (mut delivered, mut step, mut incarnation) = (vec![vec![0.0; LENGTH]; TENSORS.len()], 0_u32, 0);
    let hand_in = |step: u32, exchange: &mut GradientExchange, delivered: &mut Sums| {
        let mut handed_in = gradients(own, step);
        add(&mut ledger.lock().unwrap(), &handed_in, 1.0);
        exchange.average(&mut handed_in).map(|_| add(delivered, &handed_in, WORLD_SIZE as f32))
    };
    for victim in victims {
        for _ in 0..3 {
            hand_in(step, &mut exchange_of, &mut delivered).unwrap();
            step += 1;
        }
        if *victim == own {
            add(&mut ledger.lock().unwrap(), &residuals(&exchange_of), -1.0);
            drop((exchange_of, group));
            incarnation += 1;
            group = job.join(own, incarnation).join().unwrap();
            exchange_of = exchange(&group);
        } else {
            hand_in(step, &mut exchange_of, &mut delivered).unwrap_err();
            let left = group.shrink().unwrap();
            let mut averages = gradients(own, step);
            assert!(!exchange_of.go_on(&left, &mut averages).unwrap(), "nobody has delivered it");
            group = left.grow(AMPLE).unwrap();
            step += 1;
        }
        let from = (0..WORLD_SIZE).find(|rank| rank != victim).unwrap();
        exchange_of.share_state(&group, from, &mut delivered).unwrap();
        let mut next = [step];
        group.broadcast(&mut next, from).unwrap();
        step = next[0];
    }
    for _ in 0..2 {
        hand_in(step, &mut exchange_of, &mut delivered).unwrap();
        step += 1;
    }
    group.barrier().unwrap();
    (delivered, residuals(&exchange_of))
}

/// Handed in = delivered + the residuals of the living + those of the dead as they were at their deaths.
#[test]
fn mass_is_conserved_over_deaths_and_returns() {
    let (_reserved, port) = reserved_port();
    let (job, ledger) = (Job { port }, Arc::new(Mutex::new(vec![vec![0.0; LENGTH]; TENSORS.len()])));
    let ranks = (0..WORLD_SIZE).map(|rank| {
        let ledger = Arc::clone(&ledger);
        thread::spawn(move || live_in_steps(job, rank, &[2, 0, 1, 3, 0], &ledger))
    });
    let ended: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
    let mut found = ended[0].0.clone();
    for (delivered, residuals) in &ended {
        assert_eq!(delivered, &ended[0].0, "the same on all ranks");
        add(&mut found, residuals, 1.0);
    }
    assert_eq!(found, *ledger.lock().unwrap());
}
