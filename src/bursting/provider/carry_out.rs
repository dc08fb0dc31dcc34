//! The changes a slot's step asks for, as requests.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::{Api, ResourceExt};
use tributary_api::hosted_burst::HostedBurst;
use tributary_api::minicluster::MiniCluster;
use tributary_api::names;
use tributary_clock::Mono;
use tributary_cluster::apply::{Applied, Once};
use tributary_cluster::caches::{controller_of, controller_uid};
use tributary_cluster::sweep::{self, Doomed};
use tributary_cluster::{ObjectKey, RequestError};
use tributary_contract::{CredentialRefusal, CredentialRequest, Leave, PeerName, RejectionReason};
use tributary_flux::Certificate;
use tributary_telemetry::Span;

use super::controller::Provider;
use super::egress::Egress;
use super::ledger::SlotKey;
use super::left::{self, Left};
use super::materialize::{self, Materials};
use super::memory::{NoCertificate, Refused, SecretState};
use super::slot::{Change, ClaimKey, Wanted, holder};
use super::warm::{self, Made};
use crate::peers::PeerView;
use crate::preflight::attempt::Target;
use crate::spans;
use crate::watch::WatchedPod;

/// How long a host name may take. The resolver of the system gives up before, as a rule, and cannot be stopped.
const RESOLVE_WITHIN: Duration = Duration::from_secs(30);

impl Provider {
    /// Carries one change out. `hosted` is the freshest version of the HostedBurst, and follows what is written.
    pub(super) async fn carry_out(
        &self,
        key: &SlotKey,
        claims: &BTreeMap<ClaimKey, Wanted>,
        peers: &BTreeMap<PeerName, PeerView>,
        hosted: &mut Option<Arc<HostedBurst>>,
        change: Change,
    ) -> Result<(), RequestError> {
        match change {
            Change::Admit { claim, fingerprint, hosted: wanted, admitted } => {
                let Some(Wanted::Burst(desired)) = claims.get(&claim) else { return Ok(()) };
                // Promised before anything is written, so that nobody else gets the same room.
                self.state.lock().ledger.reserve(key, &claim.0, desired, wanted.spec.scale_up.as_ref());
                if !self.shared.grants.take(&wanted) {
                    // Somebody of the namespace was faster: the next step says so.
                    self.state.lock().ledger.cancel(key);
                    self.queue.mark(key.clone());
                    return Ok(());
                }
                let began = self.shared.now().wall;
                let admission = self.admit(key, &claim.0, peers, *wanted, &admitted).await;
                match admission {
                    Ok(Ok(stored)) => {
                        self.part(&stored, "admit", began);
                        *hosted = Some(stored);
                    }
                    Ok(Err(rejection)) => {
                        self.state.lock().ledger.cancel(key);
                        if rejection.reason == RejectionReason::QuotaExceeded {
                            self.quotas.wait(&key.0, key.clone());
                        }
                        let now = self.shared.now();
                        self.remember(key, |memory| memory.refused(claim, fingerprint, rejection, now));
                    }
                    // It may be stored all the same: its room stays reserved until the next step, which asks again or gives up.
                    Err(error) => return Err(error),
                }
                self.queue.mark(key.clone());
            }
            Change::Update(wanted) => {
                let Some(current) = hosted.clone() else { return Ok(()) };
                let pen = self.fresh.pen(ObjectKey::of(&*wanted));
                let outcome = self.applier.own(&*wanted, Some(&*current)).await;
                if let Some(stored) = pen.tried(current.uid(), outcome, self.hosted_now(key)).await?.object() {
                    *hosted = Some(pen.wrote(stored));
                }
            }
            Change::Status(status) => {
                let Some(current) = hosted.clone() else { return Ok(()) };
                let pen = self.fresh.pen(ObjectKey::of(&*current));
                let outcome = self.applier.apply_status_to_version(&*current, &*status).await;
                if let Some(stored) = pen.tried(current.uid(), outcome, self.hosted_now(key)).await?.object() {
                    let stored = pen.wrote(stored);
                    self.shared.traces.record(spans::hosted_spans(&current, &stored, self.shared.now().wall));
                    *hosted = Some(stored);
                }
            }
            Change::LookSecret => {
                let state = self.look_secret(key, hosted.as_deref()).await?;
                self.remember(key, |memory| (memory.secret, memory.unkept) = (state, None));
                self.queue.mark(key.clone());
            }
            Change::RequestCredential { peer, request } => {
                if let Some(hosted) = hosted.clone() {
                    self.request_credential(key.clone(), hosted, peer, request);
                } else {
                    self.remember(key, |memory| memory.secret = SecretState::Unknown);
                }
            }
            Change::Resolve(host) => self.resolve(key.clone(), host),
            Change::Dial(target) => self.dial(key.clone(), hosted.as_deref().map(holder), *target),
            Change::Materialize(materials) => {
                let owner = hosted.as_deref().and_then(ResourceExt::uid);
                match self.materialize(key, owner.as_deref(), *materials).await {
                    // The next step gives the burst back.
                    Err(error) if self.is_taken(key, &error) => self.queue.mark(key.clone()),
                    outcome => outcome?,
                }
            }
            Change::WarmUp { nodes } => {
                let Some(hosted) = hosted.as_deref() else { return Ok(()) };
                let made = self.warm_up(hosted, nodes).await?;
                let news = made != Made::No;
                self.remember(key, |memory| memory.warm_up = made);
                if news {
                    self.queue.mark(key.clone());
                }
            }
            Change::EndWarmUp => {
                self.end_one::<Job>(key, &names::warm_up(&key.1), hosted.as_deref()).await?;
            }
            Change::LookRequest | Change::MakeRequest | Change::EndRequest => {
                let Some(hosted) = hosted.as_deref() else { return Ok(()) };
                let request = match change {
                    Change::MakeRequest => self.make_request(key, hosted).await?,
                    Change::EndRequest => self.end_request(key, hosted).await?,
                    _ => self.look_request(key, hosted).await?,
                };
                self.remember(key, |memory| memory.request = request);
                self.queue.mark(key.clone());
            }
            Change::Unbook { pods } => {
                for pod in pods.iter().filter_map(|name| self.pod_of(key, name)) {
                    self.unbook(key, &pod).await?;
                }
            }
            Change::DeletePod(removal) => {
                let ours = self.pod_of(key, &removal.last);
                if let (Some(doomed), Some(hosted)) = (ours.as_deref().and_then(Doomed::of), hosted.as_deref()) {
                    let writer = &self.shared.clients.writer;
                    sweep::delete::<Pod>(writer, &doomed).await?;
                    self.shared.say(hosted, "Host", vec![removal.note()]).await;
                }
            }
            Change::DeleteMiniCluster { uid } => {
                let doomed = Doomed { key: ObjectKey::namespaced(&key.0, &key.1), uid };
                let writer = &self.shared.clients.writer;
                sweep::delete::<MiniCluster>(writer, &doomed).await?;
            }
            Change::LookLeft | Change::ClearLeft => {
                let known = hosted.as_deref().and_then(ResourceExt::uid);
                let memory = self.state.lock().memories.get(key).cloned().unwrap_or_default();
                let deletes = !left::only_recalled(key, known.is_some(), claims, peers, &memory);
                let found = self.clear_left(key, known, deletes).await?;
                let empty = change == Change::LookLeft && found == Left::Nothing;
                let stuck = if let Left::Stuck(what) = found { Some(what) } else { None };
                if let Some(what) = stuck.as_ref().filter(|_| stuck != memory.stuck) {
                    tracing::warn!(slot = %format!("{}/{}", key.0, key.1), "what is left of a burst stays: {what}");
                }
                let now = self.shared.now().mono;
                self.remember(key, |memory| {
                    // What is remembered of emptiness is from when there are no pods.
                    memory.looked_empty = empty;
                    (memory.stuck, memory.looked) = (stuck, Some(now));
                });
                // What is still there is looked for again: the step said when.
                if empty {
                    self.queue.mark(key.clone());
                }
            }
            Change::DeleteHosted { uid } => {
                let doomed = Doomed { key: ObjectKey::namespaced(&key.0, &key.1), uid };
                let writer = &self.shared.clients.writer;
                sweep::delete::<HostedBurst>(writer, &doomed).await?;
                self.fresh.forget(&doomed.key, &doomed.uid);
            }
        }
        Ok(())
    }

    /// Records what was done for a hosted burst since `began`.
    fn part(&self, hosted: &HostedBurst, name: &'static str, began: Timestamp) {
        let span = spans::of_hosted(hosted).map(|own| Span::part(&own, name, began, self.shared.now().wall));
        self.shared.traces.record(span.map(|span| spans::about(span, hosted, &hosted.spec.slot)));
    }

    /// The HostedBurst of a slot, by the API server's own word.
    async fn hosted_now(&self, key: &SlotKey) -> kube::Result<Option<HostedBurst>> {
        let hosted: Api<HostedBurst> = Api::namespaced(self.shared.clients.reader.clone(), &key.0);
        hosted.get_opt(&key.1).await
    }

    /// Makes the Job that pulls images ahead, for pods that are rendered as those of the burst.
    async fn warm_up(&self, hosted: &HostedBurst, nodes: u32) -> Result<Made, RequestError> {
        let rendered = match self.rendered(hosted) {
            Ok(rendered) => rendered,
            Err(message) => return Ok(Made::Refused(message)),
        };
        let pod = rendered.job.spec.unwrap_or_default().template.spec.unwrap_or_default();
        match self.applier.create_once(&warm::job(hosted, &pod, nodes)).await {
            Ok(Once::Created(job)) => Ok(Made::Yes(job.uid().unwrap_or_default())),
            Ok(Once::Exists) => self.found_warm_up(hosted).await,
            Err(error) if error.cause().is_transient() => Err(error),
            Err(error) => Ok(Made::Refused(tributary_cluster::error::chain(&error))),
        }
    }

    /// Whose Job has that name.
    async fn found_warm_up(&self, hosted: &HostedBurst) -> Result<Made, RequestError> {
        let (namespace, name) = (hosted.namespace().unwrap_or_default(), names::warm_up(&hosted.spec.slot));
        let jobs: Api<Job> = Api::namespaced(self.shared.clients.reader.clone(), &namespace);
        let object = format!("{namespace}/{name}");
        let found = jobs.get_metadata_opt(&name).await;
        let found = found.map_err(|error| RequestError::new("look for", format!("Job {object}"), error))?;
        Ok(found.map_or(Made::No, |job| warm::found(&job.metadata, &object, hosted.uid().as_deref())))
    }

    async fn look_secret(&self, key: &SlotKey, hosted: Option<&HostedBurst>) -> Result<SecretState, RequestError> {
        if let Some(hosted) = hosted.filter(|hosted| hosted.spec.whole) {
            // The leave is kept by the status alone.
            let let_start = hosted.status.as_ref().is_some_and(|status| status.credential_ready);
            let now = self.shared.clock.mono();
            return Ok(match let_start {
                true => leave(&hosted.spec.credential_digest, now),
                false => SecretState::Missing { again: now, message: String::new() },
            });
        }
        let name = names::curve(&key.1);
        let secrets: Api<Secret> = Api::namespaced(self.shared.clients.reader.clone(), &key.0);
        let secret = secrets.get_opt(&name).await;
        let secret = secret.map_err(|error| RequestError::new("read", format!("Secret {}/{name}", key.0), error))?;
        let owner = hosted.and_then(ResourceExt::uid);
        // One that another HostedBurst left behind goes with that.
        let ours = secret.filter(|secret| controller_uid(secret) == owner.as_deref());
        let certificate = ours.and_then(materialize::certificate).and_then(|text| Certificate::parse(&text).ok());
        Ok(match certificate {
            Some(certificate) => held(&certificate, self.shared.clock.mono()),
            None => SecretState::Missing { again: self.shared.clock.mono(), message: String::new() },
        })
    }

    /// Asks beside the worker: the root may take its time.
    fn request_credential(&self, key: SlotKey, hosted: Arc<HostedBurst>, peer: PeerName, request: CredentialRequest) {
        let Some(requests) = self.requests.lock().clone() else { return };
        let Some(this) = self.this() else { return };
        tokio::spawn(async move {
            let began = this.shared.now().wall;
            let state = this.fetch_credential(&key, &hosted, requests.as_ref(), &peer, request).await;
            if state.is_ok() {
                this.part(&hosted, "fetch certificate", began);
            }
            let now = this.shared.clock.mono();
            this.remember(&key, |memory| memory.fetched(state, now));
            this.queue.mark(key);
        });
    }

    async fn fetch_credential(
        &self,
        key: &SlotKey,
        hosted: &HostedBurst,
        requests: &dyn tributary_contract::ports::PeerRequests,
        peer: &PeerName,
        request: CredentialRequest,
    ) -> Result<SecretState, NoCertificate> {
        let wanted = request.digest.clone();
        let whole = hosted.spec.whole;
        let what = if whole { "give leave to start" } else { "hand out the certificate" };
        let words = |refusal: CredentialRefusal| format!("{peer} did not {what}: {refusal}");
        let leave_of = Leave::of(&request.incarnation);
        let credential = requests.request_credential(peer, request).await.map_err(words)?;
        if whole {
            return match leave_of.digest() == wanted && credential == leave_of.into() {
                true => Ok(leave(&wanted, self.shared.clock.mono())),
                false => Err(format!("{peer} sent something that is no leave to start this instance").into()),
            };
        }
        let certificate = Certificate::parse(credential.expose())
            .map_err(|error| format!("{peer} sent something that is no certificate: {error}"))?;
        let digest = certificate.digest().to_string();
        if digest != wanted {
            return Err(format!("{peer} sent another certificate than it announced").into());
        }
        let secret = materialize::secret(hosted, &credential);
        match self.applier.own(&secret, None).await {
            Ok(Applied::Terminating) => Err(format!("Secret {} is being deleted", ObjectKey::of(&secret)).into()),
            Ok(_) => Ok(held(&certificate, self.shared.clock.mono())),
            Err(error) => {
                self.is_taken(key, &error);
                let Refused { why, lasts } = Refused::of(&error);
                Err(if lasts { NoCertificate::Refused(why) } else { why.into() })
            }
        }
    }

    /// A pod of the slot's Job. Anybody can write the labels of one.
    fn pod_of(&self, key: &SlotKey, name: &str) -> Option<Arc<WatchedPod>> {
        let pod = self.shared.caches.pods.of(&ObjectKey::namespaced(&key.0, name));
        let job = ObjectKey::namespaced(&key.0, &key.1);
        pod.filter(|pod| controller_of::<Job>(&**pod).as_ref() == Some(&job))
    }

    /// Whether a name that a burst needs is another's, which is remembered. What an earlier burst of this name left behind is
    /// not: it goes by itself.
    pub(super) fn is_taken(&self, key: &SlotKey, error: &RequestError) -> bool {
        let Some(taken) = error.taken().filter(|taken| !taken.is_left_over(&key.1)) else { return false };
        self.remember(key, |memory| memory.taken = Some(taken));
        true
    }

    /// Resolves beside the worker, by the system's resolver.
    fn resolve(&self, key: SlotKey, host: String) {
        let Some(this) = self.this() else { return };
        tokio::spawn(async move {
            let lookup = tokio::time::timeout(RESOLVE_WITHIN, tokio::net::lookup_host((host.clone(), 0))).await;
            let found: Result<Vec<IpAddr>, String> = match lookup.unwrap_or_else(|late| Err(late.into())) {
                // Servers of names change the order each time, and that is no news.
                Ok(addresses) => {
                    Ok(addresses.map(|address| address.ip()).collect::<BTreeSet<_>>().into_iter().collect())
                }
                Err(error) => Err(error.to_string()),
            };
            let now = this.shared.clock.mono();
            this.remember(&key, |memory| memory.resolved_now(host, found, now));
            this.queue.mark(key);
        });
    }

    /// Looks at the lead broker beside the worker. Through a tunnel, our own agent is let in for as long as that takes.
    fn dial(&self, key: SlotKey, holder: Option<ClaimKey>, target: Target) {
        let Some(this) = self.this() else { return };
        let knock = holder.filter(|_| target.tunnel).map(|holder| this.shared.tunnels.knock(holder));
        tokio::spawn(async move {
            let seen = this.shared.leads.dial(&target).await;
            drop(knock);
            let at = this.shared.clock.mono();
            this.remember(&key, |memory| memory.attempt.saw(&target, seen, at));
            this.queue.mark(key);
        });
    }

    async fn materialize(&self, key: &SlotKey, owner: Option<&str>, materials: Materials) -> Result<(), RequestError> {
        let Materials { service, slices, egress, mini_cluster } = materials;
        let caches = &self.shared.caches;
        if let Some(service) = &service {
            let live = caches.services.of(&ObjectKey::of(service));
            self.applier.own(service, live.as_deref()).await?;
        }
        for slice in slices.iter().flatten() {
            let live = caches.slices.of(&ObjectKey::of(slice));
            self.applier.own(slice, live.as_deref()).await?;
        }
        for name in materialize::slice_names(&key.1) {
            let unwanted = slices.as_ref().is_some_and(|all| !all.iter().any(|slice| slice.name_any() == name));
            let live = caches.slices.of(&ObjectKey::namespaced(&key.0, &name));
            let ours = live.as_deref().and_then(|live| Doomed::of_owner(live, owner));
            if let (true, Some(doomed)) = (unwanted, ours) {
                let writer = &self.shared.clients.writer;
                sweep::delete::<EndpointSlice>(writer, &doomed).await?;
            }
        }
        self.guard(key, owner, egress).await?;
        if let Some(mini_cluster) = mini_cluster {
            let live = caches.mini_clusters.of(&ObjectKey::of(&mini_cluster));
            self.applier.own(&mini_cluster, live.as_deref()).await?;
        }
        Ok(())
    }

    /// Where hosted pods may connect to is decided before there are any.
    async fn guard(&self, key: &SlotKey, owner: Option<&str>, egress: Egress) -> Result<(), RequestError> {
        let name = ObjectKey::namespaced(&key.0, materialize::egress_name(&key.1));
        let live = self.shared.caches.network_policies.of(&name);
        match egress {
            Egress::Only(policy) => drop(self.applier.own(&*policy, live.as_deref()).await?),
            Egress::Open => {
                if let Some(doomed) = live.as_deref().and_then(|live| Doomed::of_owner(live, owner)) {
                    let writer = &self.shared.clients.writer;
                    sweep::delete::<NetworkPolicy>(writer, &doomed).await?;
                }
            }
            Egress::Leave => {}
        }
        Ok(())
    }
}

fn leave(digest: &str, looked: Mono) -> SecretState {
    SecretState::Held { digest: digest.to_owned(), public_key: String::new(), looked: Some(looked) }
}

fn held(certificate: &Certificate, looked: Mono) -> SecretState {
    let (digest, public_key) = (certificate.digest().to_string(), certificate.public_key().to_owned());
    SecretState::Held { digest, public_key, looked: Some(looked) }
}
