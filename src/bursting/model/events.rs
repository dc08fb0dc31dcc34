//! All that can happen, and what follows from it.

use tributary_api::minicluster::BurstNetworkType;

use super::provider::{Provider, ProviderAgent};
use super::root::{Passed, Root};
use super::world::{Asked, Model, Way, World};
use super::{Kept, Rule, secs};

/// In one pass.
const MOST_WRITES: u8 = 9;

/// Whose agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Agent {
    Root,
    Provider(usize),
}

/// Who speaks in a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Speaker {
    Root,
    Provider,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// The root's agent looks at everything.
    RootPasses,
    /// The controller of MiniClusters writes who holds the slot into the root's status.
    RootCounts,
    /// The agent of a provider looks at its slot.
    Passes(usize),
    /// The next thing that Kubernetes does there with Jobs and pods; 2: in the cluster whose name another one has.
    Runs(usize),
    /// One side says all that it has to say, and it arrives.
    Speaks(usize, Speaker),
    /// What was said earlier arrives.
    Arrives(usize, Speaker),
    /// One side notices that the session is over.
    Notices(usize, Speaker),
    /// A session begins.
    Meet(usize),
    /// A provider asks for the certificate, and the root records that.
    Asks(usize),
    /// The root sends it, or refuses.
    HandsOut(usize),
    /// It arrives.
    IsGiven(usize),
    /// Time passes. Providers look at what they have; the agent of the root may be slower.
    Tick,
    Starts(Agent),
    Heals(usize),
    Resumed,
    Added(usize),

    // From here on: faults, and what people do.
    Dies(Agent),
    /// It dies right after its n-th write.
    DiesIn(Agent, u8),
    /// The way between two clusters is cut.
    Cut(usize),
    /// A session breaks.
    Breaks(usize),
    /// One side says what it has to say, and it does not arrive yet.
    Delays(usize, Speaker),
    /// One side lists what it has to say, and what is new of it does not arrive yet.
    Lists(usize, Speaker),
    /// A tick passes that the clocks of a provider do not see.
    Slow(usize),
    /// The wall clock of a provider jumps: on, or back.
    Jumps(usize, bool),
    /// The root has a new Job, with a new certificate or with the same one.
    NewJob {
        same_certificate: bool,
    },
    /// The MiniCluster is deleted, and another one made.
    Anew,
    /// The Burst is deleted.
    Deleted,
    Suspended,
    /// The owner of a provider deletes the HostedBurst.
    Evicted(usize),
    /// The root's ClusterPeer is removed.
    Removed(usize),
    /// West is another cluster from now on.
    Repinned,
    /// A person says that the slot of the lost peer is free.
    LetGo,
}

impl Event {
    pub(super) fn is_fault(self) -> bool {
        use Event::*;
        #[rustfmt::skip]
        let good = matches!(self, RootPasses | RootCounts | Passes(_) | Runs(_) | Speaks(..) | Arrives(..) | Notices(..)
            | Meet(_) | Asks(_) | HandsOut(_) | IsGiven(_) | Tick | Starts(_) | Heals(_) | Resumed | Added(_));
        !good
    }

    /// What may happen as long as things go well.
    pub(super) fn all_good() -> Vec<Self> {
        use Event::*;
        let mut all = vec![RootPasses, RootCounts, Resumed, Starts(Agent::Root)];
        for provider in 0..2 {
            let speak = [Speaker::Root, Speaker::Provider];
            all.extend(speak.map(|speaker| Speaks(provider, speaker)));
            all.extend(speak.map(|speaker| Arrives(provider, speaker)));
            all.extend(speak.map(|speaker| Notices(provider, speaker)));
            all.extend([Starts(Agent::Provider(provider)), Heals(provider), Meet(provider), Added(provider)]);
            all.extend([Passes(provider), Asks(provider), HandsOut(provider), IsGiven(provider), Runs(provider)]);
        }
        all.extend([Runs(2), Tick]);
        all
    }

    pub(super) fn all_faults() -> Vec<Self> {
        use Event::*;
        let mut all = vec![Dies(Agent::Root), Anew, Deleted, Suspended, Repinned, LetGo];
        all.extend([true, false].map(|same_certificate| NewJob { same_certificate }));
        for provider in 0..2 {
            all.extend([Dies(Agent::Provider(provider)), Cut(provider), Breaks(provider), Slow(provider)]);
            all.extend([Evicted(provider), Removed(provider), Jumps(provider, true), Jumps(provider, false)]);
            let speak = [Speaker::Root, Speaker::Provider];
            all.extend(speak.map(|speaker| Delays(provider, speaker)));
            all.extend(speak.map(|speaker| Lists(provider, speaker)));
        }
        for writes in 1..=MOST_WRITES {
            all.extend([Agent::Root, Agent::Provider(0), Agent::Provider(1)].map(|agent| DiesIn(agent, writes)));
        }
        all
    }
}

impl Model {
    /// What follows from an event; `None`: it cannot happen now.
    pub(super) fn follows(&self, world: &World, event: Event) -> Option<World> {
        let mut next = world.clone();
        self.happens(&mut next, event)?;
        for provider in 0..2 {
            let runs = next.providers[provider].running().next().is_some();
            let stranger =
                provider == 0 && next.stranger.as_ref().is_some_and(|stranger| stranger.running().next().is_some());
            next.excused[provider] &= runs || stranger;
        }
        if next == *world {
            return None;
        }
        next.faults += u8::from(event.is_fault());
        Some(next)
    }

    fn happens(&self, next: &mut World, event: Event) -> Option<()> {
        match event {
            Event::RootPasses => self.root_passes(next, None),
            Event::RootCounts => self.root(next, "counts", 0, |root| {
                root.count(self.out);
                root.agent.is_some()
            }),
            Event::Passes(provider) => self.passes(next, provider, None),
            Event::Runs(2) => {
                let stranger = next.stranger.as_mut()?;
                *stranger = self.provider(stranger, "runs", 0, Provider::runs)?;
                Some(())
            }
            Event::Runs(provider) => self.change(next, provider, "runs", 0, Provider::runs),
            Event::Speaks(provider, speaker) => {
                let said = self.says(next, provider, speaker)?;
                self.hears(next, provider, speaker, &said, true)
            }
            Event::Lists(provider, speaker) => {
                let said = self.says(next, provider, speaker)?;
                self.hears(next, provider, speaker, &said, false)
            }
            Event::Arrives(provider, speaker) => {
                let said = next.ways[provider].late[speaker as usize].take()?;
                self.hears(next, provider, speaker, &said, true)
            }
            Event::Delays(provider, speaker) => {
                let said = self.says(next, provider, speaker)?;
                next.ways[provider].late[speaker as usize] = Some(said);
                Some(())
            }
            Event::Notices(provider, speaker) => {
                let over = !next.ways[provider].session;
                if !over {
                    return None;
                }
                match speaker {
                    Speaker::Root => self.root(next, "loses", provider, |root| {
                        let unaware = root.agent.as_ref().is_some_and(|agent| agent.silence[provider] < 2);
                        root.meets(provider, 2);
                        unaware
                    }),
                    Speaker::Provider => self.change(next, provider, "loses", 0, |found| {
                        let unaware = found.agent.as_ref().is_some_and(|agent| agent.silence < 2);
                        found.meets(2);
                        unaware
                    }),
                }
            }
            Event::Meet(provider) => {
                let way = &next.ways[provider];
                let both = next.root.agent.is_some() && next.providers[provider].agent.is_some();
                if way.session || way.cut || !both || next.root.peers[provider].is_none() {
                    return None;
                }
                next.ways[provider].session = true;
                self.root(next, "meets", provider, |root| {
                    root.meets(provider, 0);
                    true
                })?;
                self.change(next, provider, "meets", 0, |found| {
                    found.meets(0);
                    true
                })
            }
            Event::Asks(provider) => {
                let way = &next.ways[provider];
                let agent = next.providers[provider].agent.as_ref()?;
                let request = agent.asks.clone()?;
                if !way.session || next.root.agent.is_none() {
                    return None;
                }
                let asked = Kept::new(request.clone());
                let (root, goes_on) = self.known.once(("grant", next.root.1, asked.1 ^ provider as u64), || {
                    let mut root = Root::clone(&next.root);
                    let goes_on = root.grant(provider, &request, self.out);
                    (root.kept(), goes_on)
                });
                next.root = root;
                self.change(next, provider, "has asked", 0, |found| {
                    found.agent.as_mut().is_some_and(|agent| agent.asks.take().is_some())
                })?;
                if goes_on {
                    next.ways[provider].asked = Asked::Recorded(asked);
                    return Some(());
                }
                self.change(next, provider, "is refused", 0, |found| {
                    found.is_given(None);
                    true
                })
            }
            Event::HandsOut(provider) => {
                let Asked::Recorded(request) = next.ways[provider].asked.clone() else { return None };
                next.root.agent.as_ref()?;
                if next.root.hands_out(provider, &request, self.out) {
                    next.ways[provider].asked = Asked::Sent(request);
                    return Some(());
                }
                next.ways[provider].asked = Asked::Nothing;
                self.change(next, provider, "is refused", 0, |found| {
                    found.is_given(None);
                    true
                })
            }
            Event::IsGiven(provider) => {
                let Asked::Sent(request) = std::mem::take(&mut next.ways[provider].asked) else { return None };
                let digest = request.digest.clone();
                self.change(next, provider, "is given", request.1, |found| {
                    found.is_given(Some(digest));
                    true
                })
            }
            Event::Tick => self.tick(next, None),
            Event::Slow(provider) => {
                next.providers[provider].agent.as_ref()?;
                self.tick(next, Some(provider))
            }
            Event::Starts(Agent::Root) => self.root(next, "starts", 0, |root| {
                let down = root.agent.is_none();
                root.start();
                down
            }),
            Event::Starts(Agent::Provider(provider)) => {
                let out = self.out;
                self.change(next, provider, "starts", 0, |found| {
                    let down = found.agent.is_none();
                    found.start(out);
                    down
                })
            }
            Event::Dies(agent) => {
                self.end(next, agent)?;
                self.lose(next, agent);
                Some(())
            }
            Event::DiesIn(Agent::Root, writes) => {
                self.root_passes(next, Some(writes))?;
                self.lose(next, Agent::Root);
                Some(())
            }
            Event::DiesIn(Agent::Provider(provider), writes) => {
                self.passes(next, provider, Some(writes))?;
                self.lose(next, Agent::Provider(provider));
                Some(())
            }
            Event::Cut(provider) => {
                if std::mem::replace(&mut next.ways[provider].cut, true) {
                    return None;
                }
                self.breaks(next, provider);
                Some(())
            }
            Event::Heals(provider) => std::mem::take(&mut next.ways[provider].cut).then_some(()),
            Event::Breaks(provider) => next.ways[provider].session.then(|| self.breaks(next, provider)),
            Event::Jumps(provider, on) => {
                let by = if on { 100 } else { -100 } * secs();
                self.change(next, provider, "jumps", u64::from(on), |found| {
                    found.jump(by);
                    true
                })
            }
            Event::NewJob { same_certificate } => self.root(next, "job", usize::from(same_certificate), |root| {
                root.job += 1;
                root.certificate += u8::from(!same_certificate);
                !root.over
            }),
            Event::Anew => self.root(next, "anew", 0, |root| {
                (root.life, root.job, root.certificate) = (root.life + 1, root.job + 1, root.certificate + 1);
                (root.row, root.burst) = (None, None);
                true
            }),
            Event::Deleted => self.root(next, "deleted", 0, |root| root.burst.take().is_some()),
            Event::Suspended => self.root(next, "suspended", 0, |root| !std::mem::replace(&mut root.over, true)),
            Event::Resumed => self.root(next, "resumed", 0, |root| {
                (root.job, root.certificate) = (root.job + 1, root.certificate + 1);
                std::mem::take(&mut root.over)
            }),
            Event::Evicted(provider) => {
                self.change(next, provider, "evicted", 0, |found| found.hosted.take().is_some())
            }
            Event::Removed(provider) => {
                self.root(next, "removed", provider, |root| {
                    let there = root.peers[provider].take().is_some();
                    root.meets(provider, 2);
                    there
                })?;
                self.breaks(next, provider);
                Some(())
            }
            Event::Added(provider) => {
                let cluster = u8::from(provider == 0 && next.stranger.is_some());
                self.root(next, "added", provider + 2 * usize::from(cluster), |root| {
                    let removed = root.peers[provider].is_none();
                    root.peers[provider] = Some(cluster);
                    root.look();
                    removed
                })
            }
            Event::Repinned => {
                if next.stranger.is_some() || next.root.peers[0].is_none() {
                    return None;
                }
                self.breaks(next, 0);
                let mut new = Provider::new();
                new.start(None);
                next.stranger = Some(std::mem::replace(&mut next.providers[0], new.kept()));
                next.ways[0] = Way::default();
                self.root(next, "repinned", 0, |root| {
                    root.peers[0] = Some(1);
                    root.meets(0, 2);
                    true
                })
            }
            Event::LetGo => self.root(next, "let go", 0, |root| {
                root.let_go();
                true
            }),
        }
    }

    fn tick(&self, next: &mut World, slow: Option<usize>) -> Option<()> {
        let sessions = [next.ways[0].session, next.ways[1].session];
        let arg = usize::from(sessions[0]) + 2 * usize::from(sessions[1]);
        self.root(next, "ages", arg, |root| {
            root.age(sessions);
            true
        })?;
        for (provider, session) in sessions.into_iter().enumerate() {
            if slow == Some(provider) {
                self.change(next, provider, "is late", 0, |found| {
                    found.is_late();
                    true
                })?;
                continue;
            }
            self.change(next, provider, "ages", u64::from(session), |found| ages(found, session))?;
            let _ = self.passes(next, provider, None);
        }
        if let Some(stranger) = &mut next.stranger {
            let older = self.provider(stranger, "ages", 0, |found| ages(found, false))?;
            *stranger = self.known.once(("passes", older.1, 0), || older.pass(None)).0;
        }
        Some(())
    }

    fn root_passes(&self, next: &mut World, dies_after: Option<u8>) -> Option<()> {
        next.root.agent.as_ref()?;
        let key = ("root passes", next.root.1, u64::from(dies_after.unwrap_or(0)));
        let Passed { next: root, writes, released } = self.known.once(key, || next.root.pass(self.out, dies_after));
        next.root = root;
        (0..2).for_each(|provider| next.excused[provider] |= released[provider]);
        has_come_to(writes, dies_after)
    }

    fn passes(&self, next: &mut World, provider: usize, dies_after: Option<u8>) -> Option<()> {
        let found = &next.providers[provider];
        found.agent.as_ref()?;
        let key = ("passes", found.1, u64::from(dies_after.unwrap_or(0)));
        let (found, writes) = self.known.once(key, || found.pass(dies_after));
        next.providers[provider] = found;
        has_come_to(writes, dies_after)
    }

    /// Something happens to the root.
    fn root(
        &self,
        next: &mut World,
        what: &'static str,
        arg: usize,
        change: impl FnOnce(&mut Root) -> bool,
    ) -> Option<()> {
        let changed = self.known.once((what, next.root.1, arg as u64), || {
            let mut root = Root::clone(&next.root);
            change(&mut root).then(|| root.kept())
        });
        changed.map(|root| next.root = root)
    }

    /// Something happens to a provider.
    fn change(
        &self,
        next: &mut World,
        provider: usize,
        what: &'static str,
        arg: u64,
        change: impl FnOnce(&mut Provider) -> bool,
    ) -> Option<()> {
        let changed = self.provider(&next.providers[provider], what, arg, change)?;
        next.providers[provider] = changed;
        Some(())
    }

    fn provider(
        &self,
        found: &Kept<Provider>,
        what: &'static str,
        arg: u64,
        change: impl FnOnce(&mut Provider) -> bool,
    ) -> Option<Kept<Provider>> {
        self.known.once((what, found.1, arg), || {
            let mut found = Provider::clone(found);
            change(&mut found).then(|| found.kept())
        })
    }

    fn says(&self, next: &World, provider: usize, speaker: Speaker) -> Option<Kept<super::Said>> {
        let way = &next.ways[provider];
        // Words of one side arrive in order.
        if !way.session || way.late[speaker as usize].is_some() {
            return None;
        }
        let (root, found) = (&next.root, &next.providers[provider]);
        Some(match speaker {
            Speaker::Root => self.known.once(("root says", root.1, provider as u64), || Kept::new(root.says(provider))),
            Speaker::Provider => self.known.once(("says", found.1, 0), || Kept::new(found.says())),
        })
    }

    fn hears(
        &self,
        next: &mut World,
        provider: usize,
        speaker: Speaker,
        said: &Kept<super::Said>,
        new: bool,
    ) -> Option<()> {
        let what = |both, listed| if new { both } else { listed };
        match speaker {
            Speaker::Root => self.change(next, provider, what("hears", "is listed"), said.1, |found| {
                found.hears(said, new);
                true
            }),
            Speaker::Provider => {
                let key = (what("root hears", "root is listed"), next.root.1, said.1 ^ provider as u64);
                next.root = self.known.once(key, || {
                    let mut root = Root::clone(&next.root);
                    root.hears(provider, said, new);
                    root.kept()
                });
                Some(())
            }
        }
    }

    fn end(&self, next: &mut World, agent: Agent) -> Option<()> {
        match agent {
            Agent::Root => self.root(next, "dies", 0, |root| root.agent.take().is_some()),
            Agent::Provider(provider) => self.change(next, provider, "dies", 0, |found| found.agent.take().is_some()),
        }
    }

    /// An agent is gone, and its sessions with it.
    fn lose(&self, next: &mut World, agent: Agent) {
        match agent {
            Agent::Root => (0..2).for_each(|provider| self.breaks(next, provider)),
            Agent::Provider(provider) => self.breaks(next, provider),
        }
    }

    /// A session ends, with all that is on its way in it.
    fn breaks(&self, next: &mut World, provider: usize) {
        let way = &mut next.ways[provider];
        *way = Way { cut: way.cut, ..Way::default() };
        // Whoever waits for a certificate hears that there will be none.
        let _ = self.change(next, provider, "is refused", 0, |found| {
            let waits = found.agent.as_ref().is_some_and(ProviderAgent::asked);
            found.is_given(None);
            waits
        });
    }
}

/// Whether a pass has the write that its agent dies of.
fn has_come_to(writes: u8, dies_after: Option<u8>) -> Option<()> {
    assert!(writes <= MOST_WRITES, "{writes} writes in a pass");
    dies_after.is_none_or(|after| writes >= after).then_some(())
}

fn ages(found: &mut Provider, session: bool) -> bool {
    found.age(session);
    if found.agent.is_none() {
        found.is_late();
    }
    true
}

/// Whether nothing of this cluster stands between brokers and their lead.
pub(super) fn is_direct(network: BurstNetworkType) -> bool {
    network != BurstNetworkType::Tunnel
}

/// The rules that are about a network.
pub(super) fn is_fenced(out: Option<Rule>) -> bool {
    out != Some(Rule::Fence)
}
