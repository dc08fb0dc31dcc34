//! Options of the commands that make clusters know each other.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};
use tributary::api::duration::Lasting;
use tributary::api::peer::{ImportPolicy, PodSecurityLevel};
use tributary::bursting::addresses::Range;
use tributary::render::quantity::milli;

use super::{Output, target};

/// What the other cluster may place in this one.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ImportFlags {
    /// Let the peer place bursts in this namespace, too (repeatable; * for any; default: nowhere)
    #[arg(
        long = "import",
        aliases = ["allow", "import-namespaces"],
        value_name = "NAMESPACE",
        value_delimiter = ',',
        group = "namespaces",
        help_heading = "Import policy"
    )]
    pub import: Vec<String>,
    /// Let the peer place bursts in this namespace, and in no other one (repeatable; nowhere: '')
    #[arg(long, value_name = "NAMESPACE", value_delimiter = ',', group = "namespaces", help_heading = "Import policy")]
    pub import_only: Vec<String>,
    /// Most bursts the peer may place here
    #[arg(long, value_name = "N", help_heading = "Import policy")]
    pub max_bursts: Option<i32>,
    /// Most brokers the peer may place here
    #[arg(long, value_name = "N", help_heading = "Import policy")]
    pub max_brokers: Option<i32>,
    /// Most cores the peer may have here, over all its brokers
    #[arg(long, value_name = "N", help_heading = "Import policy")]
    pub max_cores: Option<i32>,
    /// Most GPUs the peer may have here
    #[arg(long, value_name = "N", help_heading = "Import policy")]
    pub max_gpus: Option<i32>,
    /// Most memory the peer's brokers may request here together, e.g. 512Gi
    #[arg(long, value_name = "AMOUNT", value_parser = amount, help_heading = "Import policy")]
    pub max_memory: Option<String>,
    /// Most ephemeral storage the peer's brokers may request here together
    #[arg(long, value_name = "AMOUNT", value_parser = amount, help_heading = "Import policy")]
    pub max_ephemeral_storage: Option<String>,
    /// Most offers of the peer that are looked at within a minute (default: 120)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..), help_heading = "Import policy")]
    pub max_offers_per_minute: Option<i32>,
    /// How long a burst may be here, e.g. 8h
    #[arg(long, value_name = "TIME", value_parser = time, help_heading = "Import policy")]
    pub max_duration: Option<Duration>,
    /// Namespace here for a namespace there, e.g. burst-{peer}-{namespace} (default: the same name)
    #[arg(long, value_name = "TEMPLATE", help_heading = "Import policy")]
    pub target_namespace: Option<String>,
    /// Pod-security level of the peer's bursts (default: baseline)
    #[arg(long, value_enum, help_heading = "Import policy")]
    pub pod_security: Option<PodSecurity>,
    /// Images the peer's bursts may use, e.g. 'ghcr.io/our-org/*' (repeatable; default: any)
    #[arg(long = "allow-image", value_name = "PATTERN", help_heading = "Import policy")]
    pub allow_images: Vec<String>,
    /// ServiceAccount of the peer's pods (default: default)
    #[arg(long, value_name = "NAME", help_heading = "Import policy")]
    pub service_account: Option<String>,
    /// PriorityClass of the peer's pods
    #[arg(long, value_name = "NAME", help_heading = "Import policy")]
    pub priority_class: Option<String>,
    /// RuntimeClass of the peer's pods
    #[arg(long, value_name = "NAME", help_heading = "Import policy")]
    pub runtime_class: Option<String>,
    /// Let the peer's pods connect to each other, the lead broker and DNS only, and to this range (repeatable; none: '')
    #[arg(long = "only-egress-to", value_name = "CIDR", help_heading = "Import policy")]
    pub egress: Vec<String>,
    /// Take bursts of the peer only if their lead broker has an address in this range (repeatable; any: '')
    #[arg(long = "lead-range", value_name = "CIDR", value_parser = range, help_heading = "Import policy")]
    pub lead_ranges: Vec<String>,
}

impl ImportFlags {
    /// The policy of a peer that has none yet; `None`: the peer may place nothing.
    pub(crate) fn policy(&self) -> Option<ImportPolicy> {
        // What the options say is a policy, since every one of them is a field of it.
        self.fields(&[]).map(|fields| serde_json::from_value(fields).expect("the options are fields of the policy"))
    }

    /// Whether limits are stated, and no namespace: they are for a peer whose import names some.
    pub(crate) fn names_nothing(&self) -> bool {
        self.fields(&[]).is_some_and(|fields| fields.get("namespaces").is_none())
    }

    /// What is stated of the policy of a peer whose import names `known`, field by field; `None`: nothing is.
    pub(crate) fn fields(&self, known: &[String]) -> Option<Value> {
        let Self {
            import,
            import_only,
            max_bursts,
            max_brokers,
            max_cores,
            max_gpus,
            max_memory,
            max_ephemeral_storage,
            max_offers_per_minute,
            max_duration,
            target_namespace,
            pod_security,
            allow_images,
            service_account,
            priority_class,
            runtime_class,
            egress,
            lead_ranges,
        } = self;
        let written = |words: &[String]| -> Option<Vec<String>> {
            let named = || words.iter().filter(|word| !word.is_empty()).cloned().collect();
            (!words.is_empty()).then(named)
        };
        let added = |mut more: Vec<String>| {
            more.retain(|namespace| !known.contains(namespace));
            [known, &more].concat()
        };
        let stated = json!({
            "namespaces": written(import).map(added).or_else(|| written(import_only)),
            "maxBursts": max_bursts,
            "maxBrokers": max_brokers,
            "maxCores": max_cores,
            "maxGpus": max_gpus,
            "maxMemory": max_memory,
            "maxEphemeralStorage": max_ephemeral_storage,
            "maxOffersPerMinute": max_offers_per_minute,
            "maxDuration": max_duration.map(|time| Lasting::of_seconds(i64::try_from(time.as_secs()).unwrap_or(i64::MAX))),
            "targetNamespace": target_namespace,
            "podSecurity": pod_security.map(|level| match level {
                PodSecurity::Privileged => PodSecurityLevel::Privileged,
                PodSecurity::Baseline => PodSecurityLevel::Baseline,
                PodSecurity::Restricted => PodSecurityLevel::Restricted,
            }),
            "allowImages": (!allow_images.is_empty()).then_some(allow_images),
            "serviceAccount": service_account,
            "priorityClass": priority_class,
            "runtimeClass": runtime_class,
            "egress": written(egress).map(|ranges| json!({"allow": ranges})),
            "leadRanges": written(lead_ranges),
        });
        let Value::Object(mut stated) = stated else { unreachable!("it is written as an object") };
        stated.retain(|_, value| !value.is_null());
        (!stated.is_empty()).then_some(Value::Object(stated))
    }
}

/// Level of the Pod Security Standards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum PodSecurity {
    /// Anything goes
    Privileged,
    /// No known privilege escalation
    #[default]
    Baseline,
    /// Hardened pods only
    Restricted,
}

/// `agentctl token`.
#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    /// Make a token and print it: whoever has it can make its cluster a peer of this one
    Create(Box<TokenCreate>),
    /// Show the tokens of this cluster, and who has used them
    List(Output),
    /// Delete tokens: nobody can join with them any more
    Delete(TokenDelete),
}

/// `agentctl token create`.
#[derive(Debug, Args)]
#[command(mut_arg("import_only", |arg| arg.hide(true)))]
pub(crate) struct TokenCreate {
    /// How long it can be used, e.g. 15m or 2h
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = time)]
    pub expires: Duration,
    /// How many clusters can join with it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub uses: u32,
    /// Where the other cluster reaches the listener for joining, host:port (repeatable; default: as the agent says)
    #[arg(long = "join-endpoint", value_name = "ADDRESS")]
    pub endpoints: Vec<String>,
    /// Labels of the cluster that joins, for selectors of bursts, key=value (repeatable)
    #[arg(short, long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<String>,
    /// What the cluster that joins may place here.
    #[command(flatten)]
    pub import: ImportFlags,
    /// Do not show our MiniClusters and bursts to the cluster that joins (agentctl status over there)
    #[arg(long)]
    pub hide_status: bool,
}

/// `agentctl token delete`.
#[derive(Debug, Args)]
pub(crate) struct TokenDelete {
    /// Which, as agentctl token list shows them
    #[arg(required = true)]
    pub ids: Vec<String>,
}

/// `agentctl join`.
#[derive(Debug, Args)]
#[command(args = target::hidden(&["namespace"]))]
pub(crate) struct Join {
    /// What agentctl token create printed; - reads it from standard input
    pub token: String,
    /// Labels of the cluster that made the token, for selectors of bursts, key=value (repeatable)
    #[arg(short, long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<String>,
    /// What the cluster that made the token may place here.
    #[command(flatten)]
    pub import: ImportFlags,
    /// Do not show our MiniClusters and bursts to that cluster (agentctl status over there)
    #[arg(long)]
    pub hide_status: bool,
    /// How long to wait for the connection, e.g. 30s; 0s: not at all
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub wait: Duration,
}

/// `agentctl link`.
#[derive(Debug, Args)]
#[command(args = target::hidden(&["context", "namespace", "endpoint"]))]
pub(crate) struct Link {
    /// Context of the one cluster
    pub a: String,
    /// Context of the other one
    pub b: String,
    /// Labels of the second cluster in the first, for selectors of bursts, key=value (repeatable)
    #[arg(short, long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<String>,
    /// What each may place in the other.
    #[command(flatten)]
    pub import: ImportFlags,
    /// Do not show the MiniClusters and bursts of either cluster to the other one (agentctl status)
    #[arg(long)]
    pub hide_status: bool,
    /// The import policy is for the first cluster's bursts in the second one only
    #[arg(long, requires = "namespaces")]
    pub one_way: bool,
    /// Read the clusters, and print the two objects instead of writing them
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask before the name of a peer becomes that of another cluster
    #[arg(short, long)]
    pub yes: bool,
    /// How long to wait for agents that were just installed and their load balancers, and then for the connection, e.g. 5m; 0s: for
    /// agents alone, 15s
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub wait: Duration,
}

/// `agentctl peer remove`.
#[derive(Debug, Args)]
pub(crate) struct PeerRemove {
    /// Name of the peer's cluster
    pub name: String,
    /// Also if bursts are placed there, whose slots stay reserved (agentctl bursts says for how long), or if it has bursts
    /// here, which are evicted at once
    #[arg(long)]
    pub force: bool,
    /// Free its slots as well, though it has not confirmed that nothing is left there: brokers that still run there and reach
    /// a lead broker would run the same ranks as those of the next peer
    #[arg(long, requires = "force")]
    pub release_slots: bool,
    /// Who frees the slots, for the record (default: your name, as the API server knows it)
    #[arg(long, value_name = "NAME", requires = "release_slots")]
    pub by: Option<String>,
}

/// `agentctl peer drain`.
#[derive(Debug, Args)]
pub(crate) struct PeerDrain {
    /// Name of the peer's cluster
    pub name: String,
    /// How long to wait until nothing is left, e.g. 5m; 0s: not at all
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = time)]
    pub wait: Duration,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// `agentctl peer suspend`.
#[derive(Debug, Args)]
pub(crate) struct PeerSuspend {
    /// Name of the peer's cluster
    pub name: String,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// The name of a peer.
#[derive(Debug, Args)]
pub(crate) struct PeerName {
    /// Name of the peer's cluster
    pub name: String,
}

/// `agentctl identity`.
#[derive(Debug, Subcommand)]
pub(crate) enum Identity {
    /// Replace this cluster's own authority: peers that are connected and consent follow, and no connection ends
    ///
    /// The new authority signs when all peers know it, and at the latest after the life of a certificate (24 h unless configured).
    /// From then on, peers that do not know it refuse this cluster: those that were away all the time, and those whose ClusterPeer of
    /// this cluster has trustUpdates: Manual, unless their owner has added the new authority to trustBundle. Suspended peers are not
    /// waited for.
    Rotate(IdentityRotate),
}

/// `agentctl identity rotate`.
#[derive(Debug, Args)]
pub(crate) struct IdentityRotate {
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// `15m`, `2h 30m`, `PT15M`.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let span: jiff::SignedDuration = text.parse().map_err(|_| "write it like 30s, 15m or 2h".to_owned())?;
    Duration::try_from(span).map_err(|_| "it cannot be negative".to_owned())
}

/// `203.0.113.0/24`, or nothing.
fn range(text: &str) -> Result<String, String> {
    match text.is_empty() || text.parse::<Range>().is_ok() {
        true => Ok(text.to_owned()),
        false => Err("write it like 203.0.113.0/24 or 2001:db8::/32".to_owned()),
    }
}

/// `512Gi`, as Kubernetes writes amounts.
fn amount(text: &str) -> Result<String, String> {
    let known = milli(text).is_some_and(|amount| amount >= 0);
    known.then(|| text.to_owned()).ok_or_else(|| "write it like 512Gi or 1Ti".to_owned())
}
