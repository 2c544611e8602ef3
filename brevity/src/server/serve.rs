//! The end of a worker, and what a server waits for.

use std::future::poll_fn;
use std::time::Duration;

use super::watch::Ended;
use super::{ParameterServer, Served};
use crate::error::{Error, Result};

impl ParameterServer {
    /// Leaves: no worker waits for this one any more. A push that was not pulled is applied when this
    /// returns. Where this rank serves, it goes on until all workers have left or are gone; it returns what
    /// its shard has done. A server to which no message goes through for the timeout is left without a word
    /// if it has answered all pushes.
    ///
    /// Where every rank serves, leaving two servers one after the other takes the same order on all ranks, as
    /// each waits for all; or await both at once.
    ///
    /// # Errors
    /// Of a push that was not pulled, which may be lost then: [`Error::ServerLost`], [`Error::ServerSilent`]
    /// after the timeout, [`Error::Refused`]. This rank has left, and has served, all the same.
    /// [`Error::WorkersSilent`], as for [`serve`](Self::serve): the shard has ended then.
    /// [`Error::Collective`] in a forked child.
    pub fn leave(mut self) -> Result<Option<Served>> {
        self.group.check_process()?;
        let applied = self.worker().map_or(Ok(()), |(worker, around)| worker.leave(&around));
        let served = self.serve_to_the_end();
        applied.and(served)
    }

    /// The same, awaited, in any runtime: it blocks no thread, and is woken by the last worker. If the future
    /// is dropped before, the server is: others find this rank gone.
    ///
    /// # Errors
    /// As for [`leave`](Self::leave).
    pub async fn leave_async(mut self) -> Result<Option<Served>> {
        self.group.check_process()?;
        let applied = match self.worker() {
            Ok((worker, around)) => worker.leave_async(&around).await,
            Err(_) => Ok(()),
        };
        let served = self.serve_to_the_end_async().await;
        applied.and(served)
    }

    /// Serves until all workers have left or are gone: what a dedicated server calls. On a rank that only
    /// works it returns at once. Returns what the shard of this rank has done. Dropping the server ends
    /// serving; this takes as long as the request that the shard is handling, and some milliseconds.
    ///
    /// A worker that sends nothing keeps a server waiting only for the timeout: the group's, or that of
    /// [`set_timeout`](Self::set_timeout), which should be longer than workers compute between two calls, and
    /// `Duration::MAX` to wait for ever.
    ///
    /// On a simulated network, where nothing may block, await [`serve_async`](Self::serve_async).
    ///
    /// # Errors
    /// [`Error::WorkersSilent`] if some workers have not left, and nothing was heard of any of them for the
    /// timeout. The shard serves on: serve again, or save it and give up. [`Error::Order`] on a rank that
    /// works and serves: [`leave`](Self::leave) serves, too. [`Error::Collective`] in a forked child.
    pub fn serve(&mut self) -> Result<Option<Served>> {
        self.check_may_serve()?;
        self.serve_to_the_end()
    }

    /// The same, awaited, in any runtime: it blocks no thread, and is woken by the last worker. The shard
    /// works on threads of its own, so it serves before this is polled, and goes on if the future is dropped:
    /// race it with a timer to [save](Self::save) the shard now and then.
    ///
    /// ```
    /// # use brevity::server::{ParameterServer, Servers};
    /// # async fn serve(group: brevity::Group) -> Result<(), brevity::Error> {
    /// let parameters = [vec![0.0f32; 4]];
    /// let server = ParameterServer::builder(&group).tensor("weight", [4]).servers(Servers::Dedicated(1));
    /// let mut server = server.build_async(&parameters).await?;
    /// if !server.is_worker() {
    ///     let served = server.serve_async().await?;
    ///     println!("{} pushes", served.map_or(0, |served| served.pushes));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`serve`](Self::serve).
    pub async fn serve_async(&mut self) -> Result<Option<Served>> {
        self.check_may_serve()?;
        self.serve_to_the_end_async().await
    }

    /// Serves for so long, and returns whether all workers have left or are gone. For a server that
    /// [saves](Self::save) its shard now and then.
    ///
    /// # Errors
    /// [`Error::Order`], [`Error::Collective`] as for [`serve`](Self::serve).
    pub fn serve_for(&mut self, longest: Duration) -> Result<bool> {
        self.check_may_serve()?;
        Ok(self.desk.as_mut().is_none_or(|desk| desk.join_for(longest, None) == Some(Ended::Deserted)))
    }

    /// The same, with a limit for a silence of workers, as in [`serve`](Self::serve). The silence counts over
    /// calls that follow each other, so that a server that saves its shard more often finds it, too.
    ///
    /// # Errors
    /// As for [`serve`](Self::serve).
    pub fn serve_within(&mut self, longest: Duration, silence: Duration) -> Result<bool> {
        self.check_may_serve()?;
        let Some(desk) = &mut self.desk else { return Ok(true) };
        match desk.join_for(longest, Some(silence)) {
            Some(ended) => self.ended(ended, silence).map(|_| true),
            None => Ok(false),
        }
    }

    /// What the shard of this rank has done so far; `None` where this rank does not serve.
    #[must_use]
    pub fn served(&self) -> Option<Served> {
        self.desk.as_ref()?.look(|shard| shard.served)
    }

    fn check_may_serve(&self) -> Result<()> {
        self.group.check_process()?;
        if self.worker.is_some() && self.desk.is_some() {
            let remedy = "leave first: that serves until all others have left, too";
            return Err(Error::Order { what: "serving alone on a rank that works", remedy });
        }
        Ok(())
    }

    fn serve_to_the_end(&mut self) -> Result<Option<Served>> {
        let silence = self.silence();
        let ended = self.desk.as_mut().map_or(Ended::Deserted, |desk| desk.join(silence));
        self.ended(ended, silence)
    }

    async fn serve_to_the_end_async(&mut self) -> Result<Option<Served>> {
        let silence = self.silence();
        let Some(desk) = &mut self.desk else { return Ok(None) };
        desk.watch(Some(silence));
        let ended = poll_fn(|context| desk.poll_ended(context)).await;
        self.ended(ended, silence)
    }

    fn ended(&self, ended: Ended, after: Duration) -> Result<Option<Served>> {
        match ended {
            Ended::Deserted => Ok(self.served()),
            Ended::Silent => {
                let workers = self.desk.as_ref().and_then(|desk| desk.look(|shard| shard.not_gone()));
                let rank = |worker: usize| self.peers.member(self.plan.roles.workers[worker]).0;
                let ranks = workers.unwrap_or_default().into_iter().map(rank).collect();
                Err(Error::WorkersSilent { ranks, after })
            }
        }
    }

    /// How long all workers may be silent.
    fn silence(&self) -> Duration {
        self.timeout.unwrap_or_else(|| self.group.timeout())
    }
}
