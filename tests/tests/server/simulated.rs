//! On the simulated network, with deaths at every message.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use brevity::compress::generator::Generator;
use brevity::server::{Charge, Method, Servers};
use brevity::transport::sim::{Cluster, Fault, Links, run};
use brevity::transport::{Rank, Transport};
use brevity::{Error, Group, Settings};

use brevity_tests::pushes::{Record, TOTAL, builder, check_mass, fits_within, zeros};

/// Longer than any run.
const TIMEOUT: Duration = Duration::from_secs(100);

fn links() -> Links {
    Links::new(100e-6, 8e-9)
}

fn group(transport: Box<dyn Transport>) -> Group {
    Group::new(transport, Settings { timeout: TIMEOUT, ..Settings::default() })
}

/// What became of a rank.
#[derive(Debug)]
enum Ended {
    /// A worker that has done all its steps.
    Worked,
    /// A shard: where it begins, and its elements.
    Served(usize, Vec<f32>),
    /// When it did.
    Failed(Error, Duration),
}

impl Ended {
    fn shard(&self) -> Option<(usize, &[f32])> {
        if let Self::Served(first, elements) = self { Some((*first, elements)) } else { None }
    }
}

struct Job {
    method: Method,
    servers: Servers,
    shards: usize,
    workers: u32,
    steps: u32,
    /// The longest time that a worker computes between two steps, in microseconds.
    slowness: u64,
}

/// Runs a job. Returns what became of the ranks, and what each worker has recorded.
fn simulate(job: &Job, ranks: u32, faults: Vec<Fault>) -> (Vec<Ended>, Vec<Record>) {
    simulate_on(links(), job, ranks, faults)
}

fn simulate_on(links: Links, job: &Job, ranks: u32, faults: Vec<Fault>) -> (Vec<Ended>, Vec<Record>) {
    let records: Arc<Mutex<Vec<Record>>> =
        Arc::new(Mutex::new(vec![Record::default(); job.workers as usize]));
    let cluster = Cluster::new(ranks, links).with_faults(faults);
    let ended = run(cluster, |transport| {
        let (group, records) = (group(transport), Arc::clone(&records));
        let (method, servers, workers, steps, slowness) =
            (job.method, job.servers, job.workers, job.steps, job.slowness);
        async move {
            let worked = async {
                let charge = Charge::PerByte(Duration::from_nanos(20));
                let server =
                    builder(&group).method(method).servers(servers).charge(charge).build_async(&zeros());
                let mut server = server.await?;
                let (rank, mut parameters) = (group.rank(), zeros());
                if rank >= workers {
                    let model = server.model();
                    server.serve_async().await?;
                    let (first, model) = server.model().or(model).unwrap();
                    return Ok(Ended::Served(first, model));
                }
                let mut generator = Generator::new(rank.into());
                server.fetch_async(&mut parameters).await?;
                for step in 0..steps {
                    let computing = Duration::from_micros(generator.below(slowness + 1));
                    group.compute(computing).await;
                    let mut record = records.lock().unwrap()[rank as usize].clone();
                    let pushed = record.push(&mut server, rank, step);
                    records.lock().unwrap()[rank as usize] = record;
                    pushed?;
                    server.pull_async(&mut parameters).await?;
                }
                server.leave_async().await?;
                Ok(Ended::Worked)
            };
            worked.await.unwrap_or_else(|error| Ended::Failed(error, group.now()))
        }
    });
    let records = records.lock().unwrap().clone();
    (ended.unwrap(), records)
}

/// The model, from all shards.
fn model(ended: &[Ended]) -> Vec<f32> {
    let mut model = vec![0.0; TOTAL];
    for (first, elements) in ended.iter().filter_map(Ended::shard) {
        model[first..first + elements.len()].copy_from_slice(elements);
    }
    model
}

fn dedicated(method: Method, steps: u32) -> Job {
    Job { method, servers: Servers::Dedicated(2), shards: 2, workers: 3, steps, slowness: 500 }
}

#[test]
fn a_thousand_steps_lose_nothing() {
    for method in [Method::gradient_dropping(0.1), Method::asgd(), Method::dgc(0.05, 0.0)] {
        let job = dedicated(method, 340);
        let (ended, records) = simulate(&job, 5, Vec::new());
        assert!(ended[..3].iter().all(|ended| matches!(ended, Ended::Worked)), "{ended:?}");
        check_mass(&model(&ended), 2, &records, &[]);
    }
}

/// A worker's death leaves the others as they were; over a thousand steps, with random delays of computing
/// and of messages.
#[test]
fn workers_that_die_lose_no_push_of_others() {
    for seed in 0..6 {
        let mut generator = Generator::new(seed);
        let mut draw = |most: u64| generator.below(most);
        let job = Job { workers: 5, slowness: 2000, ..dedicated(Method::gradient_dropping(0.1), 340) };
        let faults = [0, 1]
            .map(|rank| Fault::Kill { rank: Rank(rank), at: Duration::from_micros(50_000 + draw(300_000)) });
        let stall =
            Fault::Stall { rank: Rank(2), at: Duration::from_millis(8), lasting: Duration::from_millis(40) };
        let faults = faults.into_iter().chain([stall]).collect();
        let mut links = links();
        for worker in 0..5 {
            for server in [5, 6] {
                let latency = Duration::from_micros(20 + draw(1000));
                links = links.with_link(Rank(worker), Rank(server), latency.as_secs_f64(), 8e-9);
            }
        }
        let (ended, records) = simulate_on(links, &job, 7, faults);
        assert!(records.iter().map(|record| record.next).sum::<u32>() >= 1000);
        assert!(ended[2..5].iter().all(|ended| matches!(ended, Ended::Worked)), "seed {seed}: {ended:?}");
        check_mass(&model(&ended), job.shards, &records[2..], &records[..2]);
    }
}

/// Every rank is killed after each of its messages, one run each. The others end by themselves, or for a
/// reason that the death explains.
#[test]
fn a_death_at_any_message_ends_well() {
    let job = dedicated(Method::gradient_dropping(0.1), 6);
    for victim in 0..5 {
        for messages in 1.. {
            let fault = Fault::KillAfter { rank: Rank(victim), messages };
            let (ended, records) = simulate(&job, 5, vec![fault]);
            // A server that has died takes all workers for gone.
            let of_fault = if victim < 3 { &ended[victim as usize..][..1] } else { &ended[..3] };
            if of_fault.iter().all(|ended| matches!(ended, Ended::Worked)) {
                // It had fewer messages than that.
                assert!(messages > 6, "rank {victim} ended with {messages} messages");
                break;
            }
            check_endings(victim, &ended);
            check_pushes(&job, victim, &ended, &records);
        }
    }
}

/// Nobody waits for a worker, also while the server is made.
fn check_endings(victim: u32, ended: &[Ended]) {
    for rank in (0..5).filter(|rank| *rank != victim) {
        let is_explained = match &ended[rank as usize] {
            Ended::Worked | Ended::Served(..) => true,
            Ended::Failed(Error::ServerLost { rank: lost, shard }, _) => {
                *lost == shard + 3 && *lost == victim
            }
            Ended::Failed(..) => false,
        };
        assert!(is_explained, "{victim} has died, rank {rank}: {ended:?}");
    }
}

/// Each shard that is left has all pushes of those that have worked to the end. Of the others the last push
/// may be applied or not, and no other.
fn check_pushes(job: &Job, victim: u32, ended: &[Ended], records: &[Record]) {
    let (sure, unsure): (Vec<_>, Vec<_>) = records.iter().zip(ended).partition(|(_, ended)| {
        // Of one that was lost with a server, and of the dead.
        matches!(ended, Ended::Worked)
    });
    let of = |all: Vec<(&Record, &Ended)>| -> Vec<Record> {
        all.into_iter().map(|(record, _)| record.clone()).collect()
    };
    let (sure, unsure) = (of(sure), of(unsure));
    let left = (0..).zip(ended).filter(|(rank, _)| *rank != victim);
    let shards: Vec<_> = left.filter_map(|(_, ended)| ended.shard()).collect();
    assert_eq!(shards.len(), job.shards - usize::from(victim >= 3));
    for (first, elements) in shards {
        let mut model = vec![0.0; TOTAL];
        model[first..first + elements.len()].copy_from_slice(elements);
        let fits = fits_within(&model, first..first + elements.len(), &sure, &unsure);
        assert!(fits, "{victim} has died: {elements:?} from {first} of {sure:?} and perhaps {unsure:?}");
    }
}

#[test]
fn where_every_rank_serves_a_death_is_told_to_all() {
    let job = Job { servers: Servers::EveryRank, shards: 3, ..dedicated(Method::gradient_dropping(0.1), 40) };
    let (ended, _) = simulate(&job, 3, Vec::new());
    assert!(ended.iter().all(|ended| matches!(ended, Ended::Worked)), "{ended:?}");
    let at = Duration::from_millis(10);
    let (ended, _) = simulate(&job, 3, vec![Fault::Kill { rank: Rank(1), at }]);
    for rank in [0, 2] {
        let Ended::Failed(Error::ServerLost { rank: 1, shard: 1 }, when) = ended[rank] else {
            panic!("{:?}", ended[rank])
        };
        assert!(when - at < Duration::from_secs(1), "{when:?}");
    }
}

/// Rank 2 learns that rank 1 has ended long before it can find that rank 0 is dead.
#[test]
fn a_rank_that_ends_for_a_death_names_it() {
    let job =
        Job { servers: Servers::EveryRank, shards: 3, ..dedicated(Method::gradient_dropping(0.1), 400) };
    let links = links().with_link(Rank(0), Rank(2), 5e-3, 8e-9);
    let fault = Fault::Kill { rank: Rank(0), at: Duration::from_millis(60) };
    let (ended, _) = simulate_on(links, &job, 3, vec![fault]);
    for rank in [1, 2] {
        let is_told = matches!(ended[rank], Ended::Failed(Error::ServerLost { rank: 0, shard: 0 }, _));
        assert!(is_told, "{:?}", ended[rank]);
    }
}

#[test]
fn one_hundred_and_twenty_eight_workers() {
    let job = Job { workers: 128, ..dedicated(Method::gradient_dropping(0.02), 8) };
    let (ended, records) = simulate(&job, 130, Vec::new());
    assert!(ended[..128].iter().all(|ended| matches!(ended, Ended::Worked)));
    check_mass(&model(&ended), 2, &records, &[]);
}

/// The charge of a shard's work passes before its answers are sent.
#[test]
fn computing_takes_virtual_time() {
    let time = |charge| {
        let cluster = Cluster::new(2, links());
        let ended = run(cluster.clone(), |transport| {
            let (group, cluster) = (group(transport), cluster.clone());
            async move {
                let server = builder(&group).servers(Servers::Dedicated(1)).charge(charge);
                let mut server = server.build_async(&zeros()).await.unwrap();
                if !server.is_worker() {
                    server.serve_async().await.unwrap();
                    return Duration::ZERO;
                }
                let mut parameters = zeros();
                server.fetch_async(&mut parameters).await.unwrap();
                let begun = cluster.now();
                group.compute(Duration::from_millis(3)).await;
                server.step_async(&zeros(), 1.0, &mut parameters).await.unwrap();
                let took = cluster.now() - begun;
                server.leave_async().await.unwrap();
                took
            }
        });
        ended.unwrap()[0]
    };
    let (free, charged) = (time(Charge::Nothing), time(Charge::PerByte(Duration::from_micros(10))));
    let request = (4 * TOTAL + 48) as u32;
    assert_eq!(charged - free, request * Duration::from_micros(10));
    assert!(free > Duration::from_micros(3200) && free < Duration::from_micros(3400), "{free:?}");
}

/// A worker that is stopped keeps its server waiting for the timeout, in virtual time.
#[test]
fn a_server_waits_for_a_silent_worker_until_the_timeout() {
    let stall =
        Fault::Stall { rank: Rank(0), at: Duration::from_secs(1), lasting: Duration::from_secs(1000) };
    let cluster = Cluster::new(3, links()).with_faults(vec![stall]);
    let ended = run(cluster.clone(), |transport| {
        let (group, cluster) = (group(transport), cluster.clone());
        async move {
            let server = builder(&group).servers(Servers::Dedicated(1)).build_async(&zeros());
            let mut server = server.await.unwrap();
            if server.is_worker() {
                let mut parameters = zeros();
                server.fetch_async(&mut parameters).await.unwrap();
                // One of them is heard of again and again.
                for _ in 0..30 * group.rank() {
                    group.compute(Duration::from_secs(1)).await;
                    server.pull_async(&mut parameters).await.unwrap();
                }
                group.compute(Duration::from_secs(2 * u64::from(1 - group.rank()))).await;
                server.leave_async().await.unwrap();
                return Duration::ZERO;
            }
            server.set_timeout(Duration::from_secs(10));
            let served = server.serve_async().await;
            let is_silent = matches!(&served, Err(Error::WorkersSilent { ranks, .. }) if *ranks == [0]);
            assert!(is_silent, "{served:?}");
            let waited = cluster.now();
            server.set_timeout(Duration::MAX);
            server.serve_async().await.unwrap();
            waited
        }
    });
    let waited = ended.unwrap()[2];
    assert!((30.0..45.0).contains(&waited.as_secs_f64()), "{waited:?}");
}

/// Rank 1 makes its server when rank 0 has pushed a hundred times; that of rank 2 is another one.
#[test]
fn a_worker_that_joins_late_holds_up_nobody() {
    const LATE: Duration = Duration::from_secs(1);
    let ended = run(Cluster::new(5, links()), |transport| {
        let group = group(transport);
        async move {
            let (rank, mut parameters, mut record) = (group.rank(), zeros(), Record::default());
            let server = builder(&group).servers(Servers::Dedicated(2));
            let method = Method::gradient_dropping(if rank == 2 { 0.2 } else { 0.1 });
            if rank == 1 {
                group.compute(LATE).await;
            }
            let mut server = server.method(method).build_async(&zeros()).await.unwrap();
            if rank > 2 {
                assert_eq!(server.serve_async().await.unwrap().unwrap().pushes, 110);
                return (record, parameters);
            }
            let fetched = server.fetch_async(&mut parameters).await;
            if rank == 2 {
                assert!(matches!(fetched, Err(Error::Refused { .. })), "{fetched:?}");
                server.leave_async().await.unwrap();
                return (record, parameters);
            }
            for step in 0..[100, 10][rank as usize] {
                record.push(&mut server, rank, step).unwrap();
                let clock = server.pull_async(&mut parameters).await.unwrap().clock;
                assert_eq!(clock, u64::from(1 + step + 100 * rank));
            }
            assert_eq!(group.now() < LATE, rank == 0);
            server.fetch_async(&mut parameters).await.unwrap();
            server.leave_async().await.unwrap();
            (record, parameters)
        }
    });
    let (records, models): (Vec<Record>, Vec<_>) = ended.unwrap().into_iter().take(2).unzip();
    check_mass(&models[1].concat(), 2, &records, &[]);
}
