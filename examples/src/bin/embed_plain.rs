//! Collectives in an event loop of the program's own, without a runtime: `poll(2)` on the group's descriptor
//! beside the program's own. `embed_plain [RANKS [SECONDS]]`: rank 1 is late for the last call.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Instant;

use brevity::collectives::engine::Next;
use brevity::{Driver, Handle, Join, ReduceOp};
use brevity_examples::embed::{self, CALLS, Ended, lateness, report, report_processor_time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

fn main() -> ExitCode {
    embed::main(rank)
}

fn rank() -> Ended {
    let group = Join::from_env()?.join()?;
    let mut driver = group.driver()?;
    let start = || group.start_all_reduce(vec![1.0f32; 8], ReduceOp::Sum);

    let begun = Instant::now();
    for _ in 0..CALLS {
        finish(&mut driver, start())?.1?;
    }
    report(group.rank(), "one after the other", begun, CALLS);

    let begun = Instant::now();
    let calls: Vec<_> = (0..100).map(|_| start()).collect();
    for call in calls {
        finish(&mut driver, call)?.1?;
    }
    report(group.rank(), "100 at once", begun, 100);

    report_processor_time(group.rank());
    if group.rank() == 1 {
        std::thread::sleep(lateness());
    }
    let sum = finish(&mut driver, start())?;
    sum.1?;
    report_processor_time(group.rank());
    assert_eq!(sum.0, [group.world_size() as f32; 8]);
    Ok(())
}

/// The event loop, until a call has ended.
fn finish<T>(driver: &mut Driver, call: Handle<T>) -> Result<T, rustix::io::Errno> {
    let descriptor = driver.descriptor();
    while !call.test() {
        if let Next::Sleep(longest) = driver.turn() {
            let longest =
                Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: longest.subsec_nanos().into() };
            // The program's own descriptors may be polled too.
            poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&longest))?;
        }
    }
    Ok(call.wait())
}
