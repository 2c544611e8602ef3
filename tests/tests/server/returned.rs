//! A dedicated server that is lost, comes back to the job, and goes on from what it has saved.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use brevity::server::{Method, Servers};
use brevity::{Error, Group, Join, ParameterServer};
use brevity_testing::worlds::reserved_port;
use brevity_tests::pushes::{LENS, Record, TOTAL, builder, residual, zeros};

const RANKS: u32 = 3;
const SERVER: u32 = 2;

/// Only a hang reaches it.
const AMPLE: Duration = Duration::from_secs(60);

/// What the server is told to do: 0 to serve.
const SAVE: u32 = 1;
const DIE: u32 = 2;

#[derive(Clone)]
struct Job {
    port: u16,
    told: Arc<AtomicU32>,
    saved: Arc<Mutex<Vec<u8>>>,
    workers: Arc<Barrier>,
}

impl Job {
    fn join(&self, rank: u32, incarnation: u32) -> Group {
        let address = format!("127.0.0.1:{}", self.port);
        let join = Join::new(rank, RANKS).address(&address).port_reserved(true);
        join.key("correct horse battery staple").timeout(AMPLE).incarnation(incarnation).join().unwrap()
    }

    /// Tells the server, and waits until it has done so.
    fn tell(&self, what: u32) {
        self.told.store(what, Ordering::SeqCst);
        while self.told.load(Ordering::SeqCst) != 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn serve(&self) {
        let group = self.join(SERVER, 0);
        let mut server = start(&group, None);
        loop {
            server.serve_for(Duration::from_millis(2)).unwrap();
            let told = self.told.load(Ordering::SeqCst);
            if told == SAVE {
                let mut state = Vec::new();
                server.save(&mut state).unwrap();
                *self.saved.lock().unwrap() = state;
                server.confirm_saved();
            }
            if told == DIE {
                break;
            }
            self.told.store(0, Ordering::SeqCst);
        }
        drop((server, group));
        self.told.store(0, Ordering::SeqCst);
        let group = self.join(SERVER, 1);
        assert_eq!(group.returned(), [SERVER]);
        let saved = self.saved.lock().unwrap().clone();
        start(&group, Some(&saved)).serve().unwrap();
        group.barrier().unwrap();
    }

    /// Gives what the worker has handed in, its residuals after coming back, and the model that it fetches.
    fn work(&self, own: u32) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
        let group = self.join(own, 0);
        let (mut server, mut record, mut parameters) = (start(&group, None), Record::default(), zeros());
        server.fetch(&mut parameters).unwrap();
        let mut make_steps = |server: &mut ParameterServer, steps: std::ops::Range<u32>| {
            for step in steps {
                record.push(server, own, step)?;
                server.pull(&mut parameters)?;
            }
            Ok::<(), Error>(())
        };
        for (steps, what) in [(0..4, SAVE), (4..8, DIE)] {
            make_steps(&mut server, steps).unwrap();
            self.workers.wait();
            if own == 0 {
                self.tell(what);
            }
            self.workers.wait();
        }
        let error = make_steps(&mut server, 8..100).unwrap_err();
        assert!(matches!(error, Error::ServerLost { rank: SERVER, .. }), "{error}");
        let mut state = Vec::new();
        server.save(&mut state).unwrap();
        drop(server);

        assert!(group.barrier().is_err());
        let group = group.shrink().unwrap().grow(AMPLE).unwrap();
        assert_eq!((group.world_size(), group.returned()), (RANKS, vec![SERVER]));
        let mut server = start(&group, Some(&state));
        let mut model = zeros();
        server.fetch(&mut model).unwrap();
        let kept = residual(&server);
        server.leave().unwrap();
        group.barrier().unwrap();
        (record.handed_in, kept, model.concat())
    }
}

fn start(group: &Group, state: Option<&[u8]>) -> ParameterServer {
    let method = Method::gradient_dropping(0.1);
    let mut builder = builder(group).method(method).servers(Servers::Dedicated(1)).keep_pushes();
    if let Some(mut state) = state {
        builder = builder.resume(&mut state).unwrap();
    }
    builder.build(&LENS.map(|len| vec![0.0; len])).unwrap()
}

/// All that was ever handed in is in the model, or in residuals.
#[test]
fn a_server_that_comes_back_goes_on_from_what_it_has_saved() {
    let (_reserved, port) = reserved_port();
    let (told, saved, workers) = (Arc::default(), Arc::default(), Arc::new(Barrier::new(2)));
    let job = Job { port, told, saved, workers };
    let server = thread::spawn({
        let job = job.clone();
        move || job.serve()
    });
    let workers = [0, 1].map(|own| {
        let job = job.clone();
        thread::spawn(move || job.work(own))
    });
    let worked = workers.map(|worker| worker.join().unwrap());
    server.join().unwrap();
    assert_eq!(worked[0].2, worked[1].2, "one model");
    for index in 0..TOTAL {
        let handed_in = worked[0].0[index] + worked[1].0[index];
        let found = worked[0].1[index] + worked[1].1[index] - worked[0].2[index];
        assert_eq!(found, handed_in, "element {index}");
    }
}
